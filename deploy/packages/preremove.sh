#!/bin/sh
# deb: $1 is "remove" or "upgrade"; rpm: the number of versions that remain.
set -e
case "$1" in
remove | 0)
  if [ -d /run/systemd/system ]; then
    systemctl disable --now walpost.service || true
  fi
  ;;
esac
