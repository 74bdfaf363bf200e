#!/bin/sh
# The service is not enabled: its configuration must name a database first. An upgrade restarts it if it runs.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  systemctl try-restart walpost.service || true
fi
