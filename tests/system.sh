#!/usr/bin/env bash
# Installs from Debian what some tests use and pip can't bring: Chromium, for web pages and for the software Vulkan driver that comes
# with it, and Vulkan's loader. Tests skip what is missing and say so. Needs root or sudo; does nothing where all is there.
set -euo pipefail

want=()
command -v chromium chromium-browser google-chrome chrome >/dev/null || want+=(chromium)
fc-list 2>/dev/null | grep -q . || want+=(fonts-dejavu-core fontconfig)
ldconfig -p 2>/dev/null | grep -q libvulkan.so.1 || want+=(libvulkan1)
if [ ${#want[@]} -eq 0 ]; then exit 0; fi
command -v apt-get >/dev/null || { echo "no apt-get here: install ${want[*]} in your system's way" >&2; exit 1; }
root=(); [ "$(id -u)" = 0 ] || root=(sudo -n)
echo "installing ${want[*]}"
patient=(-o Acquire::Retries=1 -o Acquire::http::Timeout=60)
"${root[@]}" timeout 300 apt-get "${patient[@]}" update -qq
DEBIAN_FRONTEND=noninteractive "${root[@]}" timeout 900 apt-get "${patient[@]}" install -y -qq --no-install-recommends "${want[@]}" >/dev/null
