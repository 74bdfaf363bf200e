// Package deploy holds what runs and watches walpost in production, and its tests; there is no code in it. prometheus/ has alert and recording
// rules with promtool tests (*_test.yaml), which internal/e2e runs. grafana/ has a dashboard. systemd/ has the service. The runbooks of the alerts are in
// docs/runbooks/.
package deploy
