#!/usr/bin/env bash
# Tries quickstart.sh on a bare Debian 13, made by debootstrap, which has python3, python3-venv and g++, and nothing else:
# quickstart.sh must name Python's headers, and must work once the command that it names was run. Needs root, debootstrap
# and Debian's archive, or a mirror of it (DEBIAN_MIRROR). The bare system is kept in .cache/debian13, beside its copy
# that was used last.
set -euo pipefail
source "$(dirname "$0")/../common/environment.sh"
mirror=${DEBIAN_MIRROR:-http://deb.debian.org/debian}
bare=.cache/debian13/bare
machine=.cache/debian13/machine

[ "$(id -u)" = 0 ] || die "debootstrap needs root: run this script as root"
command -v debootstrap >/dev/null || die "debootstrap is missing: $(install_command debootstrap debootstrap)"

# on_machine COMMAND: runs the command in the checkout on the machine, with no variable of this one.
on_machine() {
  local certificates=/etc/ssl/certs/ca-certificates.crt
  unshare --mount --pid --fork bash -euc '
    mount -t proc proc "$0/proc"
    mount -t devpts devpts "$0/dev/pts"
    exec chroot "$0" "$@"' "$machine" \
    env -i PATH=/usr/sbin:/usr/bin HOME=/root LANG=C.UTF-8 DEBIAN_FRONTEND=noninteractive \
    SSL_CERT_FILE="$certificates" PIP_CERT="$certificates" sh -euc "cd /trtllm_lite; $1"
}

if [ ! -d $bare ]; then
  say "make a bare Debian 13"
  rm -rf $bare.partial
  mkdir -p $bare.partial
  debootstrap --variant=minbase --include=ca-certificates,g++,python3,python3-venv trixie $bare.partial "$mirror"
  mv $bare.partial $bare
fi

say "copy this checkout to it"
rm -rf --one-file-system $machine
cp --archive $bare $machine
cp --dereference /etc/resolv.conf /etc/hosts $machine/etc/ # host names; the certificates follow
cp --dereference /etc/ssl/certs/ca-certificates.crt $machine/etc/ssl/certs/
mkdir $machine/trtllm_lite
git ls-files -z --cached --others --exclude-standard | tar --null --create --files-from - |
  tar --extract --directory $machine/trtllm_lite

say "quickstart.sh without Python's headers"
if refusal=$(on_machine "bash scripts/quickstart.sh" 2>&1); then
  die "quickstart.sh must end where Python's headers are missing"
fi
command=$(sed -n "s/^- headers of Python 3.13: //p" <<<"$refusal")
[ "$command" = "apt-get install python3.13-dev" ] || die "quickstart.sh did not name Python's headers:"$'\n'"$refusal"
echo "$refusal"
on_machine "apt-get update -qq; $command --yes -qq >/dev/null"

say "quickstart.sh"
time on_machine "bash scripts/quickstart.sh"
