#!/usr/bin/env bash
# Installs from Debian what some tests use and pip can't bring: Chromium (web pages, GUI tasks) and, where the one at hand is too old
# for ManiSkill, a software Vulkan driver. Tests skip what is missing and say so. Needs root or sudo; does nothing where all is there.
set -euo pipefail

want=()
command -v chromium chromium-browser google-chrome chrome >/dev/null || want+=(chromium)
fc-list 2>/dev/null | grep -q . || want+=(fonts-dejavu-core fontconfig)
[ -e /usr/share/vulkan/icd.d/lvp_icd.json ] || [ -e /usr/lib/chromium/vk_swiftshader_icd.json ] || want+=(mesa-vulkan-drivers)
ldconfig -p 2>/dev/null | grep -q libvulkan.so.1 || want+=(libvulkan1)
if [ ${#want[@]} -eq 0 ]; then exit 0; fi
command -v apt-get >/dev/null || { echo "no apt-get here: install ${want[*]} in your system's way" >&2; exit 1; }
root=(); [ "$(id -u)" = 0 ] || root=(sudo -n)
echo "installing ${want[*]}"
"${root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${root[@]}" apt-get install -y -qq --no-install-recommends "${want[@]}" >/dev/null
