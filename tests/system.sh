#!/usr/bin/env bash
# Installs from Debian what some tests use and pip can't bring: Chromium, for web pages and for the software Vulkan driver that comes
# with it, a Chromium without windows, and a driver for it; Vulkan's loader; OSMesa, with which MuJoCo draws; what ManiSkill's libraries
# link to; bubblewrap, which isolates verifiers. Tests skip what is missing and say so.
# Needs root or sudo; does nothing where all is there.
set -euo pipefail

has() { ldconfig -p 2>/dev/null | grep -q "$1"; }

want=()
command -v chromium chromium-browser google-chrome chrome >/dev/null || want+=(chromium)
command -v chromium-headless-shell chrome-headless-shell google-chrome chrome >/dev/null || want+=(chromium-headless-shell)
command -v chromedriver >/dev/null || want+=(chromium-driver)
fc-list 2>/dev/null | grep -q . || want+=(fonts-dejavu-core fontconfig)
command -v bwrap >/dev/null || want+=(bubblewrap)
has libvulkan.so.1 || want+=(libvulkan1)
has libOSMesa.so || want+=(libosmesa6)
has libX11.so.6 || want+=(libx11-6)
has libGL.so.1 || want+=(libgl1)
has libgthread-2.0.so.0 || want+=(libglib2.0-0)
if [ ${#want[@]} -eq 0 ]; then exit 0; fi
command -v apt-get >/dev/null || { echo "no apt-get here: install ${want[*]} in your system's way" >&2; exit 1; }
root=(); [ "$(id -u)" = 0 ] || root=(sudo -n)
echo "installing ${want[*]}"
patient=(-o Acquire::Retries=1 -o Acquire::http::Timeout=60)
install() { DEBIAN_FRONTEND=noninteractive "${root[@]}" timeout 900 apt-get "${patient[@]}" install -y -qq --no-install-recommends "$@" >/dev/null; }
"${root[@]}" timeout 300 apt-get "${patient[@]}" update -qq
if install "${want[@]}"; then exit 0; fi
failed=()  # apt installs all or nothing, and a name that this system lacks would take the others with it
for package in "${want[@]}"; do install "$package" || failed+=("$package"); done
[ ${#failed[@]} -eq 0 ] || { echo "could not be installed: ${failed[*]}" >&2; exit 1; }
