#!/bin/sh
# Installs what the tests use and is not there: strace (crashes and errors at system calls), a C compiler (the
# shim of unsynced writes), mkfs for power cuts, bubblewrap, network namespaces, a PostgreSQL server, Chromium for
# hostile pages.
# Needs Debian's packages and root; without them the tests say what they could not run.
set -eu
missing=""
command -v strace >/dev/null 2>&1 || missing="$missing strace"
command -v cc >/dev/null 2>&1 || missing="$missing gcc libc6-dev"
command -v mkfs.ext4 >/dev/null 2>&1 || [ -x /sbin/mkfs.ext4 ] || missing="$missing e2fsprogs"
command -v mkfs.xfs >/dev/null 2>&1 || [ -x /sbin/mkfs.xfs ] || missing="$missing xfsprogs"
command -v bwrap >/dev/null 2>&1 || missing="$missing bubblewrap"
command -v ip >/dev/null 2>&1 || [ -x /sbin/ip ] || missing="$missing iproute2"
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || missing="$missing postgresql"
command -v chromium >/dev/null 2>&1 || command -v google-chrome >/dev/null 2>&1 || missing="$missing chromium"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "installing$missing"
    apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
    echo "the tests want:$missing"
fi
