// Package helm tests the chart in walpost/, the plain manifests in ../kubernetes, and docker-compose.yml.
package helm
