// Package deploy holds what runs and watches walpost in production, and its tests; there is no code in it. prometheus/ has alert and recording
// rules with promtool tests (*_test.yaml), which internal/e2e runs. grafana/ has a dashboard. systemd/ has the service. helm/ has
// the chart, with tests in a module of their own, and kubernetes/ has plain manifests that are made from it. The runbooks of the alerts are in
// docs/runbooks/. compose/ has the files of docker-compose.yml.
package deploy
