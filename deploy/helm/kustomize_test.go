package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

const base = "../kubernetes"

// ofHelm are lines that have no meaning without Helm. The hash of kustomize replaces the annotation.
var ofHelm = regexp.MustCompile(`(?m)^\s*(app\.kubernetes\.io/managed-by: |helm\.sh/chart: |# walpost reads walpost\.yaml |checksum/config: ).*\n`)

// The base for kustomize is the chart with its fewest values.
func TestThePlainManifestsAreThoseOfTheChart(t *testing.T) {
	manifests, err := render(t, cases(t)["minimal"])
	if err != nil {
		t.Fatal(err)
	}
	found := objects(t, manifests)
	config := found["configmap"].(*corev1.ConfigMap)
	golden(t, filepath.Join(base, "walpost.yaml"), config.Data["walpost.yaml"])
	delete(manifests, "configmap.yaml")
	delete(manifests, "NOTES.txt")
	text := "# Made from deploy/helm/walpost by: GOWORK=off go test -update ./... (in deploy/helm)\n"
	for _, name := range sorted(manifests) {
		text += "---\n" + ofHelm.ReplaceAllString(manifests[name], "")
	}
	golden(t, filepath.Join(base, "manifests.yaml"), text)
	for _, doc := range strings.Split(text, "---\n")[1:] {
		objects(t, map[string]string{"manifests.yaml": doc})
	}

	var k struct {
		APIVersion         string   `json:"apiVersion"`
		Kind               string   `json:"kind"`
		Resources          []string `json:"resources"`
		ConfigMapGenerator []struct {
			Name  string   `json:"name"`
			Files []string `json:"files"`
		} `json:"configMapGenerator"`
	}
	if err := yaml.UnmarshalStrict([]byte(read(t, filepath.Join(base, "kustomization.yaml"))), &k); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(k.Resources, []string{"manifests.yaml"}) || len(k.ConfigMapGenerator) != 1 ||
		k.ConfigMapGenerator[0].Name != config.Name || !slices.Equal(k.ConfigMapGenerator[0].Files, []string{"walpost.yaml"}) {
		t.Errorf("kustomization.yaml: %+v; the pod mounts the ConfigMap %s", k, config.Name)
	}
	volumes := found["deployment"].(*appsv1.Deployment).Spec.Template.Spec.Volumes
	if volumes[0].ConfigMap.Name != config.Name {
		t.Errorf("the pod mounts %s", volumes[0].ConfigMap.Name)
	}
}

var (
	block     = regexp.MustCompile("(?ms)^```(sh|yaml)\n(.*?)^```$")
	ofWalpost = regexp.MustCompile(`(?:--|exec walpost) walpost (.*)$`)
	ofRepo    = regexp.MustCompile(`\bdeploy/\S+`)
)

// Each piece of YAML of the page gives values that the chart and walpost accept, and each command exists.
func TestThePageAboutKubernetes(t *testing.T) {
	var whole values
	commands := 0
	for _, b := range block.FindAllStringSubmatch(read(t, "../../docs/kubernetes.md"), -1) {
		if b[1] == "yaml" {
			over := parse(t, b[2])
			if whole == nil {
				whole = over
			}
			manifests, err := render(t, whole, over)
			if err != nil {
				t.Fatalf("%v\n%s", err, b[2])
			}
			validate(t, objects(t, manifests)["configmap"].(*corev1.ConfigMap).Data["walpost.yaml"])
			continue
		}
		for line := range strings.Lines(b[2]) {
			commands++
			for _, path := range ofRepo.FindAllString(line, -1) {
				if _, err := os.Stat(filepath.Join("../..", path)); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
			checkCommand(t, line)
		}
	}
	if commands < 6 {
		t.Errorf("only %d commands", commands)
	}
}

// checkCommand checks that a command of walpost in a line of a page exists, with its flags.
func checkCommand(t *testing.T, line string) {
	t.Helper()
	if m := ofWalpost.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
		args := strings.Fields(m[1])
		out, err := exec.Command(walpost, append(args, "--help")...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "walpost "+args[0]) {
			t.Errorf("%s: %v\n%s", line, err, out)
		}
	}
}
