#!/bin/sh
# Before the files are unpacked, because the configuration belongs to the group walpost.
set -e
if ! getent group walpost >/dev/null; then
  groupadd --system walpost
fi
if ! getent passwd walpost >/dev/null; then
  useradd --system --gid walpost --home-dir /var/lib/walpost --no-create-home \
    --shell /usr/sbin/nologin --comment "walpost relay" walpost
fi
