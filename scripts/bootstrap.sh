#!/bin/sh
# What make needs that pip cannot bring: a Python with venv, a Java for Spark, a browser for the tests of the report.
#
#   bootstrap.sh venv DIR [PYTHON]   makes the virtual environment DIR with PYTHON, or with the first suitable Python found
#   bootstrap.sh java                checks that Spark will find Java 17 or newer
#   bootstrap.sh chromium            looks for Chromium and its driver; without them tests are skipped
#   bootstrap.sh kcat                looks for kcat; without it a test is skipped
#
# What is missing is installed with apt when this runs as root on Debian or Ubuntu. Otherwise one line says what to
# install, and make stops, but for the browser and kcat. Does nothing where nothing is missing.
set -eu

JAVA_VERSION_MIN=17

die() {
    echo "$*" >&2
    exit 1
}

can_apt() {
    [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1
}

# Installs the first of the named packages that can be had.
apt_install_any() {
    can_apt || return 1
    apt-get update -qq || true
    for package in "$@"; do
        echo "installing $package"
        if DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$package" >/dev/null; then
            return 0
        fi
    done
    return 1
}

is_suitable_python() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${1:-}" ]; then
        is_suitable_python "$1" || die "PYTHON=$1 is not a Python 3.10 to 3.14"
        echo "$1"
        return
    fi
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10 python; do
        if is_suitable_python "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "no Python 3.10 to 3.14 found: install one (for example: apt-get install python3 python3-venv), or name it with PYTHON=/path/to/python3"
}

has_venv() {
    "$1" -c 'import ensurepip, venv' >/dev/null 2>&1
}

make_venv() {
    directory=$1
    if is_suitable_python "$directory/bin/python" && "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    python=$(find_python "${2:-}")
    if ! has_venv "$python"; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        apt_install_any "python$version-venv" python3-venv || true
        has_venv "$python" || die "$python has no venv module: install it (Debian, Ubuntu: apt-get install python$version-venv)"
    fi
    echo "making $directory with $("$python" --version)"
    "$python" -m venv --clear "$directory"
}

# The Java that Spark will start: JAVA_HOME's, else the one on the PATH.
java_version() {
    if [ -n "${JAVA_HOME:-}" ]; then
        java="$JAVA_HOME/bin/java"
    else
        java=java
    fi
    # First line: openjdk version "17.0.15" 2025-04-15; old ones say "1.8.0_402".
    "$java" -version 2>&1 | sed -n 's/.* version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1
}

has_java() {
    version=$(java_version)
    [ -n "$version" ] && [ "$version" -ge "$JAVA_VERSION_MIN" ]
}

ensure_java() {
    has_java && return
    [ -z "${JAVA_HOME:-}" ] || die "JAVA_HOME=$JAVA_HOME holds no Java $JAVA_VERSION_MIN or newer, which Spark needs: set it to one, or unset it"
    apt_install_any openjdk-17-jre-headless openjdk-21-jre-headless default-jre-headless || true
    has_java || die "Spark needs Java $JAVA_VERSION_MIN or newer: install a JRE (Debian, Ubuntu: apt-get install openjdk-17-jre-headless) or set JAVA_HOME"
}

has_chromium() {
    command -v chromedriver >/dev/null 2>&1 &&
        { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null 2>&1
}

ensure_chromium() {
    has_chromium && return
    # A browser, then the driver of just its version.
    { apt_install_any chromium && apt_install_any chromium-driver; } || true
    has_chromium || echo "no Chromium with chromedriver: tests/browser is skipped (Debian: apt-get install chromium chromium-driver)"
}

ensure_kcat() {
    command -v kcat >/dev/null 2>&1 || apt_install_any kcat || true
    command -v kcat >/dev/null 2>&1 || echo "no kcat: its tests are skipped (Debian: apt-get install kcat)"
}

case "${1:-}" in
    venv) make_venv "$2" "${3:-}" ;;
    java) ensure_java ;;
    chromium) ensure_chromium ;;
    kcat) ensure_kcat ;;
    *) die "usage: bootstrap.sh venv DIR [PYTHON] | java | chromium | kcat" ;;
esac
