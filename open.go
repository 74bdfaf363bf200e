package walpost

import "context"

// openEvents returns the function by which cleanup asks for the ids of the events whose rows stay:
// those of open dead letters, and of parked events. Unless both are certain, it returns an error, and
// cleanup removes nothing.
func openEvents(dead, parked func(context.Context) ([]string, error)) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		letters, err := dead(ctx)
		if err != nil {
			return nil, err
		}
		ids, err := parked(ctx)
		if err != nil {
			return nil, err
		}
		return append(letters, ids...), nil
	}
}
