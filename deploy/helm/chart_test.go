package helm

import (
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"text/template"
	"time"

	"github.com/Masterminds/sprig/v3"
	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

const chart = "walpost"

var update = flag.Bool("update", false, "write the golden files and the plain manifests")

// walpost is the program, which validates what the chart renders.
var walpost string

func TestMain(m *testing.M) {
	flag.Parse()
	dir, err := os.MkdirTemp("", "walpost")
	if err != nil {
		panic(err)
	}
	walpost = filepath.Join(dir, "walpost")
	build := exec.Command("go", "build", "-o", walpost, "./cmd/walpost")
	build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0", "GOWORK=") // this module is tested without go.work
	if out, err := build.CombinedOutput(); err != nil {
		panic(fmt.Sprintf("%v\n%s", err, out))
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

type values = map[string]any

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func parse(t *testing.T, text string) (v values) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

// merged puts over on the values of the chart, as Helm does: maps are merged, and null deletes.
func merged(base, over values) values {
	for key, value := range over {
		inner, isMap := value.(values)
		below, wasMap := base[key].(values)
		switch {
		case value == nil:
			delete(base, key)
		case isMap && wasMap:
			base[key] = merged(below, inner)
		default:
			base[key] = value
		}
	}
	return base
}

// render does what helm template does. It uses the same language and functions, but not Helm itself, which takes several
// minutes to compile. TestHelmRendersTheSame compares the two where Helm is installed.
func render(t *testing.T, overs ...values) (map[string]string, error) {
	t.Helper()
	vals := parse(t, read(t, chart+"/values.yaml"))
	for _, over := range overs {
		vals = merged(vals, over)
	}
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, chart+"/values.schema.json")))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("values.schema.json", schema); err != nil {
		t.Fatal(err)
	}
	if err := c.MustCompile("values.schema.json").Validate(vals); err != nil {
		return nil, err
	}

	all := template.New("chart").Option("missingkey=zero")
	funcs := sprig.TxtFuncMap()
	for _, random := range []string{"env", "expandenv"} { // Helm removes these
		delete(funcs, random)
	}
	funcs["include"] = func(name string, data any) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	funcs["toYaml"] = func(v any) (string, error) {
		text, err := yaml.Marshal(v)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	funcs["fromYaml"] = func(text string) (v values, err error) {
		err = yaml.Unmarshal([]byte(text), &v)
		return v, err
	}
	all.Funcs(funcs)
	names, err := filepath.Glob(chart + "/templates/*")
	if err != nil || len(names) < 5 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		if _, err := all.New(filepath.Base(name)).Parse(read(t, name)); err != nil {
			t.Fatal(err)
		}
	}
	about := parse(t, read(t, chart+"/Chart.yaml"))
	data := values{
		"Values":  vals,
		"Chart":   values{"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"]},
		"Release": values{"Name": "walpost", "Namespace": "default", "Service": "Helm"},
		"Files":   files{t},
	}
	out := map[string]string{}
	for _, name := range names {
		name = filepath.Base(name)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var text strings.Builder
		if err := all.ExecuteTemplate(&text, name, data); err != nil {
			return nil, err
		}
		if strings.Contains(text.String(), "<no value>") {
			t.Errorf("%s uses a value that does not exist:\n%s", name, &text)
		}
		if strings.TrimSpace(text.String()) != "" {
			out[name] = strings.TrimLeft(text.String(), "\n")
		}
	}
	return out, nil
}

type files struct{ t *testing.T }

// Get is called by templates.
func (f files) Get(name string) string { return read(f.t, filepath.Join(chart, name)) }

// cases are the values files of the chart.
func cases(t *testing.T) map[string]values {
	t.Helper()
	found, err := filepath.Glob(chart + "/ci/*-values.yaml")
	if err != nil || len(found) != 5 {
		t.Fatal(found, err)
	}
	all := map[string]values{}
	for _, file := range found {
		all[strings.TrimSuffix(filepath.Base(file), "-values.yaml")] = parse(t, read(t, file))
	}
	return all
}

// The custom resources of the Prometheus operator, as far as the chart uses them.
type (
	serviceMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []struct {
				Port, Path, Interval, Scheme string
				BasicAuth                    struct{ Username, Password map[string]string }
				TLSConfig                    struct{ InsecureSkipVerify bool }
			} `json:"endpoints"`
		} `json:"spec"`
	}
	prometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Groups []ruleGroup `json:"groups"`
		} `json:"spec"`
	}
	ruleGroup struct {
		Name  string `json:"name"`
		Rules []struct {
			Alert         string            `json:"alert"`
			Record        string            `json:"record"`
			Expr          string            `json:"expr"`
			For           string            `json:"for"`
			KeepFiringFor string            `json:"keep_firing_for"`
			Labels        map[string]string `json:"labels"`
			Annotations   map[string]string `json:"annotations"`
		} `json:"rules"`
	}
)

// objects decodes manifests strictly: a field that Kubernetes does not know is an error.
func objects(t *testing.T, manifests map[string]string) map[string]any {
	t.Helper()
	found := map[string]any{}
	for name, text := range manifests {
		if name == "NOTES.txt" {
			continue
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(text), &kind); err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		of := map[string]func() any{
			"apps/v1 Deployment":                      func() any { return &appsv1.Deployment{} },
			"v1 ConfigMap":                            func() any { return &corev1.ConfigMap{} },
			"v1 Service":                              func() any { return &corev1.Service{} },
			"v1 ServiceAccount":                       func() any { return &corev1.ServiceAccount{} },
			"policy/v1 PodDisruptionBudget":           func() any { return &policyv1.PodDisruptionBudget{} },
			"networking.k8s.io/v1 NetworkPolicy":      func() any { return &networkingv1.NetworkPolicy{} },
			"monitoring.coreos.com/v1 ServiceMonitor": func() any { return &serviceMonitor{} },
			"monitoring.coreos.com/v1 PrometheusRule": func() any { return &prometheusRule{} },
		}[kind.APIVersion+" "+kind.Kind]
		if of == nil {
			t.Fatalf("%s: unknown kind %s %s", name, kind.APIVersion, kind.Kind)
		}
		object := of()
		if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
		}
		found[strings.TrimSuffix(name, ".yaml")] = object
	}
	return found
}

var secretFile = regexp.MustCompile(`/run/secrets/[a-z/.-]+`)

// validate has walpost judge a configuration. The files of its secrets exist in a folder of the test.
func validate(t *testing.T, config string) {
	t.Helper()
	dir := t.TempDir()
	server := httptest.NewTLSServer(nil)
	server.Close()
	pair := server.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range secretFile.FindAllString(config, -1) {
		if err := os.MkdirAll(filepath.Dir(dir+path), 0o700); err != nil {
			t.Fatal(err)
		}
		content := "secret"
		switch filepath.Ext(path) {
		case ".crt":
			content = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Certificate[0]}))
		case ".key":
			content = string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
		}
		if err := os.WriteFile(dir+path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "walpost.yaml")
	if err := os.WriteFile(file, []byte(secretFile.ReplaceAllString(config, dir+"$0")), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(walpost, "config", "validate", "--config", file)
	cmd.Env = append(os.Environ(), "KAFKA_USER=walpost")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("walpost config validate: %v\n%s\n%s", err, out, config)
	}
}

func TestTheChartRendersWhatKubernetesAndWalpostAccept(t *testing.T) {
	for name, over := range cases(t) {
		t.Run(name, func(t *testing.T) {
			manifests, err := render(t, over)
			if err != nil {
				t.Fatal(err)
			}
			found := objects(t, manifests)
			config := found["configmap"].(*corev1.ConfigMap).Data["walpost.yaml"]
			validate(t, config)
			checkDeployment(t, found, config)
			if _, there := found["poddisruptionbudget"]; there != (found["deployment"].(*appsv1.Deployment).Spec.Replicas != nil && *found["deployment"].(*appsv1.Deployment).Spec.Replicas == 2) {
				t.Error("a PodDisruptionBudget belongs to two replicas")
			}
			// The rules and the dashboard have tests of their own.
			delete(manifests, "prometheusrule.yaml")
			delete(manifests, "dashboard.yaml")
			golden(t, "testdata/"+name+".yaml", join(manifests))
		})
	}
}

// checkDeployment checks what Kubernetes accepts and what does not work all the same.
func checkDeployment(t *testing.T, found map[string]any, config string) {
	t.Helper()
	deployment := found["deployment"].(*appsv1.Deployment)
	pod := deployment.Spec.Template.Spec
	c := pod.Containers[0]
	for key, value := range deployment.Spec.Selector.MatchLabels {
		if deployment.Spec.Template.Labels[key] != value || found["service"].(*corev1.Service).Spec.Selector[key] != value {
			t.Errorf("the label %s differs in the pod or the service", key)
		}
	}
	var cfg struct {
		HTTP          struct{ Listen string } `json:"http"`
		ShutdownGrace string                  `json:"shutdown_grace"`
	}
	if err := yaml.Unmarshal([]byte(config), &cfg); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf(":%d", c.Ports[0].ContainerPort); !strings.HasSuffix(cfg.HTTP.Listen, want) {
		t.Errorf("walpost listens at %s, and the container has port %s", cfg.HTTP.Listen, want)
	}
	shutdown := 20 * time.Second
	if cfg.ShutdownGrace != "" {
		shutdown, _ = time.ParseDuration(cfg.ShutdownGrace)
	}
	if grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second; grace < shutdown+20*time.Second {
		t.Errorf("Kubernetes kills walpost after %s, and shutdown_grace is %s", grace, shutdown)
	}
	strategy, ready := appsv1.RecreateDeploymentStrategyType, "/readyz"
	if *deployment.Spec.Replicas == 2 {
		strategy, ready = appsv1.RollingUpdateDeploymentStrategyType, "/readyz?standby=ok"
	}
	if deployment.Spec.Strategy.Type != strategy || c.ReadinessProbe.HTTPGet.Path != ready || c.LivenessProbe.HTTPGet.Path != "/livez" {
		t.Errorf("%d replicas: strategy %s, ready %s, alive %s", *deployment.Spec.Replicas, deployment.Spec.Strategy.Type,
			c.ReadinessProbe.HTTPGet.Path, c.LivenessProbe.HTTPGet.Path)
	}
	mounted, temporary := map[string]bool{}, false
	for _, v := range pod.Volumes {
		mounted[v.Name] = true
		temporary = temporary || v.EmptyDir != nil && slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == v.Name && m.MountPath == "/tmp" && !m.ReadOnly
		})
		if v.Name == "config" && v.ConfigMap.Name != found["configmap"].(*corev1.ConfigMap).Name {
			t.Errorf("the pod mounts the ConfigMap %s", v.ConfigMap.Name)
		}
	}
	for _, m := range c.VolumeMounts {
		if !mounted[m.Name] || m.SubPath != "" { // a file by subPath never changes
			t.Errorf("mount %s: there is no such volume, or it has a subPath", m.Name)
		}
	}
	if !temporary {
		t.Error("nothing can be written to /tmp, where recover and verify put temporary files")
	}
	if !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *pod.AutomountServiceAccountToken {
		t.Error("the pod has more rights than it needs")
	}
}

func join(manifests map[string]string) string {
	var all strings.Builder
	for _, name := range sorted(manifests) {
		fmt.Fprintf(&all, "---\n# Source: walpost/templates/%s\n%s", name, manifests[name])
	}
	return all.String()
}

// golden compares, or writes with -update.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if want := read(t, file); got != want {
		t.Errorf("%s differs. Look at the difference after: go test -update ./...\n%s", file, got)
	}
}

// The chart knows each key of walpost.yaml: its schema has the one of walpost, on one line.
func TestTheValuesHaveTheSchemaOfTheConfiguration(t *testing.T) {
	var walpost map[string]any
	if err := json.Unmarshal([]byte(read(t, "../../walpost.schema.json")), &walpost); err != nil {
		t.Fatal(err)
	}
	delete(walpost, "$id") // it would be the base of references
	delete(walpost, "$schema")
	text, err := json.Marshal(walpost)
	if err != nil {
		t.Fatal(err)
	}
	file := chart + "/values.schema.json"
	line := regexp.MustCompile(`(?m)^    "walpost": .*$`)
	golden(t, file, line.ReplaceAllLiteralString(read(t, file), `    "walpost": `+string(text)))
}

func TestTheChartRefusesBadValues(t *testing.T) {
	good := read(t, chart+"/ci/minimal-values.yaml")
	for _, bad := range []string{
		"replicas: 3",
		"config: {source: {tabel: public.outbox}}",
		"config: {delivery: {window: {events: 0}}}",
		"config: {kafka: {topics: {create: maybe}}}",
		"replicas: 0",
		"replica: 2",
		"image: {digest: latest}",
		"config: {http: {listen: '127.0.0.1:9640'}}",
		"config: {http: {listen: 'localhost:9640'}}",
		"config: {http: {listen: 'off'}}",
		"config: {http: {listen: ':0'}}",
		"config: {http: {listen: ':http'}}",
		"config: {http: null}",
		"config: {http: {listn: ':9640'}}",
		"config: {checkpoint: {store: file}}",
		"config: {shutdown_grace: 20}",
		"config: {shutdown_grace: 20 seconds}",
		"config: {halt_linger: always}",
		"config: text",
		"config: null",
		"extraEnv: {WALPOST_DSN: x}",
		"terminationGracePeriodSeconds: 45s",
		"serviceMonitor: {interval: 1m}",
		"serviceMonitor: {enabled: 'yes'}",
		"networkPolicy: {egress: {to: []}}",
		"podAnnotations: {retries: 3}",
	} {
		if _, err := render(t, parse(t, good), parse(t, bad)); err == nil {
			t.Errorf("the chart accepts %s", bad)
		}
	}
}

// The chart has symbolic links to these files, which Helm follows when it reads or packages a chart.
func TestTheChartHasTheRulesAndTheDashboard(t *testing.T) {
	var want []ruleGroup
	for _, file := range []string{"prometheus/walpost-alerts.yaml", "prometheus/walpost-recording.yaml", "prometheus/postgres-exporter-alerts.yaml", "grafana/walpost.json"} {
		text := read(t, "../"+file)
		if strings.HasSuffix(file, ".yaml") {
			var rules struct {
				Groups []ruleGroup `json:"groups"`
			}
			if err := yaml.UnmarshalStrict([]byte(text), &rules); err != nil {
				t.Fatal(err)
			}
			want = append(want, rules.Groups...)
		}
	}
	manifests, err := render(t, cases(t)["monitoring"])
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, manifests)
	if got := found["prometheusrule"].(*prometheusRule).Spec.Groups; asJSON(t, got) != asJSON(t, want) || len(got) < 3 {
		t.Errorf("the PrometheusRule has other rules than deploy/prometheus:\n%s", asJSON(t, got))
	}
	dashboard := found["dashboard"].(*corev1.ConfigMap).Data["walpost.json"]
	if strings.TrimSpace(dashboard) != strings.TrimSpace(read(t, "../grafana/walpost.json")) || !json.Valid([]byte(dashboard)) {
		t.Error("the ConfigMap has another dashboard than deploy/grafana")
	}
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A change of the configuration must start new pods, because walpost reads the file only when it starts.
func TestAChangeOfTheConfigurationStartsNewPods(t *testing.T) {
	sum := func(over string) string {
		manifests, err := render(t, cases(t)["minimal"], parse(t, over))
		if err != nil {
			t.Fatal(err)
		}
		return objects(t, manifests)["deployment"].(*appsv1.Deployment).Spec.Template.Annotations["checksum/config"]
	}
	if a, b := sum("{}"), sum("config: {log: {level: debug}}"); a == b || a == "" {
		t.Errorf("the annotation is %q before and %q after a change", a, b)
	}
}

// Helm itself, if it is installed, must render what the golden files have, and must find nothing to improve.
func TestHelmRendersTheSame(t *testing.T) {
	helm, err := exec.LookPath("helm")
	if err != nil {
		if os.Getenv("WALPOST_REQUIRE_HELM") != "" {
			t.Fatal(err)
		}
		t.Skip("helm is not installed, so only the renderer of this test is tested")
	}
	run := func(args ...string) (string, error) {
		out, err := exec.Command(helm, args...).Output()
		return string(out), err
	}
	for name, over := range cases(t) {
		file := chart + "/ci/" + name + "-values.yaml"
		if out, err := run("lint", "--strict", chart, "--values", file); err != nil {
			t.Errorf("helm lint, %s: %v\n%s", name, err, out)
		}
		text, err := run("template", "walpost", chart, "--values", file)
		if err != nil {
			t.Errorf("helm template, %s: %v", name, err)
		}
		manifests, err := render(t, over)
		if err != nil {
			t.Fatal(err)
		}
		delete(manifests, "NOTES.txt")
		theirs := map[string]string{}
		for _, doc := range strings.Split("\n"+text, "\n---\n")[1:] {
			source, body, _ := strings.Cut(doc, "\n")
			theirs[filepath.Base(source)] = body
		}
		for _, file := range sorted(manifests) {
			if strings.TrimSpace(manifests[file]) != strings.TrimSpace(theirs[file]) {
				t.Errorf("%s, %s: Helm renders\n%s", name, file, theirs[file])
			}
		}
		if len(theirs) != len(manifests) {
			t.Errorf("%s: Helm renders %v", name, sorted(theirs))
		}
	}
	if out, err := run("template", "walpost", chart, "--set", "replicas=3"); err == nil {
		t.Errorf("Helm accepts three replicas:\n%s", out)
	}
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }
