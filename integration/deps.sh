#!/bin/bash
# deps.sh NEEDED… -- WANTED…: installs the Debian packages that are missing, as root by apt-get;
# else prints the exact line and fails where a NEEDED one is missing.
set -u
need=() want=() list=need
for word in "$@"; do
	if [ "$word" = -- ]; then list=want; continue; fi
	if [ $list = need ]; then need+=("$word"); else want+=("$word"); fi
done
absent() { for p in "$@"; do dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || echo "$p"; done; }
if ! command -v dpkg-query >/dev/null; then
	echo "deps: this is not a Debian system; needed: ${need[*]} (and for the tests: ${want[*]})" >&2
	exit 0
fi
mapfile -t missing < <(absent "${need[@]}")
mapfile -t optional < <(absent ${want[@]+"${want[@]}"})
all=(${missing[@]+"${missing[@]}"} ${optional[@]+"${optional[@]}"})
[ ${#all[@]} -gt 0 ] || exit 0
if [ "$(id -u)" = 0 ]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get install -y --no-install-recommends "${all[@]}" >/dev/null 2>&1 ||
		{ apt-get update >/dev/null && apt-get install -y --no-install-recommends "${all[@]}" >/dev/null; } ||
		{ echo "deps: apt-get could not install: ${all[*]}" >&2; exit 1; }
	echo "deps: installed ${all[*]}"
	exit 0
fi
echo "deps: missing Debian packages; run: sudo apt-get install -y --no-install-recommends ${all[*]}" >&2
[ ${#missing[@]} -eq 0 ]
