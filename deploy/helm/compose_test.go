package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"sigs.k8s.io/yaml"
)

var exactTag = regexp.MustCompile(`^[a-z/]+:v?[0-9]+(\.[0-9]+)+$`)

// TestDockerCompose reads docker-compose.yml as docker compose config does, and checks what that does not: files that
// are mounted, health checks, tags, and whether walpost, Prometheus and Grafana find each other. It starts nothing.
func TestDockerCompose(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "docker-compose.yml")
	project, err := loader.LoadWithContext(t.Context(), types.ConfigDetails{
		WorkingDir: root, ConfigFiles: []types.ConfigFile{{Filename: file}}, Environment: types.Mapping{},
	}, func(o *loader.Options) { o.SetProjectName("walpost", true) })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"grafana", "kafka", "postgres", "prometheus", "setup", "shop", "walpost"}; !slices.Equal(project.ServiceNames(), want) {
		t.Errorf("services %v, want %v", project.ServiceNames(), want)
	}
	once := map[string]bool{} // services that end
	for _, s := range project.Services {
		for name, d := range s.DependsOn {
			if d.Condition == types.ServiceConditionCompletedSuccessfully {
				once[name] = true
			} else if d.Condition != types.ServiceConditionHealthy {
				t.Errorf("%s waits for %s: %s", s.Name, name, d.Condition)
			}
		}
	}
	for _, s := range project.Services {
		if (s.HealthCheck == nil) != once[s.Name] {
			t.Errorf("%s has a health check: %t", s.Name, s.HealthCheck != nil)
		}
		if s.Build == nil && !exactTag.MatchString(s.Image) {
			t.Errorf("%s: the image %s has no exact tag", s.Name, s.Image)
		}
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil || s.Build.Context != root {
				t.Errorf("%s: context %s: %v", s.Name, s.Build.Context, err)
			}
		}
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); err != nil || !v.ReadOnly {
				t.Errorf("%s mounts %s: %v; read-only: %t", s.Name, v.Source, err, v.ReadOnly)
			}
		}
		for _, p := range s.Ports {
			if p.HostIP != "127.0.0.1" {
				t.Errorf("%s listens on %q", s.Name, p.HostIP)
			}
		}
		if s.Image == "walpost:local" {
			args := slices.DeleteFunc(append(slices.Clone([]string(s.Command)), "--help"), func(a string) bool { return a == "--apply" })
			if out, err := exec.Command(walpost, args...).CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", s.Name, err, out)
			}
		}
	}

	commands := 0
	for _, b := range block.FindAllStringSubmatch(read(t, "../../docs/install.md"), -1) {
		for line := range strings.Lines(b[2]) {
			if !strings.HasPrefix(line, "docker compose ") {
				continue
			}
			words := strings.Fields(line)
			if len(words) > 3 && !strings.HasPrefix(words[3], "-") && !slices.Contains(project.ServiceNames(), words[3]) {
				t.Errorf("there is no service for: %s", line)
			}
			checkCommand(t, line)
			commands++
		}
	}
	if commands < 6 {
		t.Errorf("docs/install.md has only %d commands", commands)
	}

	config := read(t, mounted(t, project, "walpost", *project.Services["walpost"].Environment["WALPOST_CONFIG"]))
	validate(t, config)
	for _, address := range []string{"kafka:19092", "@postgres:5432/shop"} {
		if !strings.Contains(config, address) {
			t.Errorf("walpost does not connect to %s", address)
		}
	}
	if got := *project.Services["kafka"].Environment["KAFKA_ADVERTISED_LISTENERS"]; !strings.Contains(got, "://kafka:19092") {
		t.Errorf("Kafka advertises %s", got)
	}

	var prometheus struct {
		Global        map[string]string `json:"global"`
		RuleFiles     []string          `json:"rule_files"`
		ScrapeConfigs []struct {
			JobName string `json:"job_name"`
			Static  []struct {
				Targets []string `json:"targets"`
			} `json:"static_configs"`
		} `json:"scrape_configs"`
	}
	strict(t, mounted(t, project, "prometheus", "/etc/prometheus/prometheus.yml"), &prometheus)
	for _, rules := range prometheus.RuleFiles {
		mounted(t, project, "prometheus", rules)
	}
	if got := prometheus.ScrapeConfigs[0].Static[0].Targets; !slices.Equal(got, []string{"walpost:9640"}) || len(prometheus.RuleFiles) != 2 {
		t.Errorf("Prometheus scrapes %v, with the rules %v", got, prometheus.RuleFiles)
	}

	var sources struct {
		APIVersion  int `json:"apiVersion"`
		Datasources []struct {
			Name, Type, URL string
			IsDefault       bool `json:"isDefault"`
		} `json:"datasources"`
	}
	strict(t, mounted(t, project, "grafana", "/etc/grafana/provisioning/datasources/prometheus.yaml"), &sources)
	if s := sources.Datasources[0]; s.URL != "http://prometheus:9090" || !s.IsDefault {
		t.Errorf("Grafana asks %+v", s)
	}
	var boards struct {
		APIVersion int `json:"apiVersion"`
		Providers  []struct {
			Name, Type string
			Options    map[string]string
		} `json:"providers"`
	}
	strict(t, mounted(t, project, "grafana", "/etc/grafana/provisioning/dashboards/walpost.yaml"), &boards)
	home := *project.Services["grafana"].Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
	mounted(t, project, "grafana", home)
	if got := boards.Providers[0].Options["path"]; got != filepath.Dir(home) {
		t.Errorf("Grafana reads dashboards from %s", got)
	}
}

// mounted is the file of this repository that a service has at path.
func mounted(t *testing.T, project *types.Project, service, path string) string {
	t.Helper()
	for _, v := range project.Services[service].Volumes {
		if rest, within := strings.CutPrefix(path, v.Target); within {
			if _, err := os.Stat(v.Source + rest); err != nil {
				t.Errorf("%s: %v", service, err)
			}
			return v.Source + rest
		}
	}
	t.Fatalf("%s has no file %s", service, path)
	return ""
}

func strict(t *testing.T, file string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(read(t, file)), into); err != nil {
		t.Errorf("%s: %v", file, err)
	}
}
