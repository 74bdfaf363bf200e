package input

import "strings"

// Workers begins the names of the worker's options, to tell them from the connector's.
const Workers = "(worker) "

// Last is the Order of an option behind those of the connector.
const Last = 1 << 30

// ReadWorker adds the properties of the worker that runs the connector.
func (o *Options) ReadWorker(text []byte) error {
	list, err := readProperties(text)
	if err != nil {
		err.Text = "worker: " + err.Text
		return err
	}
	for _, e := range list {
		e.Name, e.Parts, e.Order = Workers+e.Name, Split(e.Value), Last
		e.Label = e.Name
		o.ByName[e.Name] = e
	}
	o.Worker = list
	return nil
}

// ProducerName is the producer's own name of an option, or empty.
func ProducerName(option string) string {
	for _, prefix := range []string{"producer.override.", Workers + "producer."} {
		if name, ok := strings.CutPrefix(option, prefix); ok {
			return name
		}
	}
	return ""
}
