#!/usr/bin/env bash
# Installs the browser that tests/report looks at pages with, where that can be done: on Debian and
# its relatives, as root. Elsewhere it says so and ends well: those tests are then skipped.
set -euo pipefail

for name in chromium chromium-browser google-chrome google-chrome-stable; do
    if command -v "$name" >/dev/null; then
        exit 0
    fi
done
if ! command -v apt-get >/dev/null || [ "$(id -u)" != 0 ]; then
    echo "no Chromium, and no apt-get or no root to install it by: tests in a browser are skipped" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
# fonts-dejavu-core: letters for the pages, which a bare system has none of.
if ! { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; } >&2; then
    echo "Chromium could not be installed: tests in a browser are skipped" >&2
fi
