#!/bin/sh
# deb: $1 is "remove", "purge" or "upgrade"; rpm: the number of versions that remain.
# A checkpoint that is a file stays until purge: without it, the relay would not know what it has delivered.
# The user stays as long as files belong to its group, so that nobody else gets its number and reads them.
set -e
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload || true
fi
case "$1" in
remove | 0)
  rmdir /var/lib/walpost 2>/dev/null || true
  ;;
purge)
  rm -rf /var/lib/walpost /etc/walpost
  if getent passwd walpost >/dev/null; then userdel walpost; fi
  if getent group walpost >/dev/null; then groupdel walpost; fi
  ;;
esac
