#!/usr/bin/env bash
# Makes .venv with firnline in it, finds or installs Java, fetches the jars. Does nothing the second time.
#
# `setup.sh prometheus`, `setup.sh rest-s3`, `setup.sh image-packages` and `setup.sh tools`, after it, bring what single
# targets need besides.
#
# Settings, all optional: PYTHON (an interpreter), JAVA_HOME. pip and Ivy honour their own mirrors' settings.
set -euo pipefail

cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
readonly VENV=.venv
readonly STAMP=$VENV/.set-up
readonly PYTHONS=(python3.13 python3.12 python3.11 python3 python)
readonly JAVA_FOLDERS=(/usr/lib/jvm/* /Library/Java/JavaVirtualMachines/*/Contents/Home /opt/homebrew/opt/openjdk* /usr/local/opt/openjdk* /opt/java/*)

main() {
    case ${1:-} in
    prometheus)
        install_prometheus
        return
        ;;
    rest-s3)
        "$VENV/bin/firnline" jars s3proxy rest-catalog >/dev/null || fail "the servers' jars could not be fetched"
        return
        ;;
    image-packages)
        fetch_image_packages
        return
        ;;
    tools)
        install_tools
        return
        ;;
    esac
    local wanted
    wanted=$(fingerprint)
    if [[ -f $STAMP && -x $VENV/bin/firnline && $(<"$STAMP") == "$wanted" ]]; then
        echo "set-up took $SECONDS s (nothing to do)"
        return
    fi
    make_environment
    find_java || install_java
    fetch_jars
    echo "$wanted" >"$STAMP"
    echo "set-up took $SECONDS s"
}

# What the environment is made from: when one of these changes, or the folder has moved, it is made anew.
fingerprint() {
    { pwd && cat pyproject.toml compactor/spark/java.py; } | cksum
}

say() { echo "set-up: $*"; }

fail() {
    echo "set-up: $*" >&2
    exit 1
}

make_environment() {
    local python
    python=$(find_python) || python=$(install_python)
    if ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1 || ! supported_python "$VENV/bin/python" || moved; then
        say "making $VENV with $("$python" --version)"
        rm -rf "$VENV"
        make_venv "$python"
    fi
    say "installing firnline and its dependencies (minutes the first time)"
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --no-input -e '.[test]' ||
        fail "pip could not install the dependencies; check the network or the package index, then run it again"
    # As pip does with what it does not leave where it is: without byte code each command needs a fifth more to start.
    "$VENV/bin/python" -m compileall -q compactor metrics streaming || say "byte code is not kept; commands start slower"
}

# Scripts in an environment hold its path.
moved() {
    ! grep -qF "$PWD/$VENV" "$VENV/bin/activate"
}

supported_python() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' >/dev/null 2>&1
}

find_python() {
    local name
    for name in ${PYTHON:+"$PYTHON"} "${PYTHONS[@]}"; do
        if command -v "$name" >/dev/null && supported_python "$name"; then
            command -v "$name"
            return
        fi
    done
    return 1
}

install_python() {
    local advice="Python 3.11, 3.12 or 3.13 is needed and none was found; install one or set PYTHON"
    say "no Python 3.11 to 3.13 found, asking the package manager" >&2
    install_package python "$advice" >&2
    find_python || fail "$advice"
}

make_venv() {
    if "$1" -m venv "$VENV" 2>/dev/null; then
        return
    fi
    local version package
    version=$("$1" -c 'import sys; print("python%d.%d" % sys.version_info[:2])')
    package=$version-venv
    say "$1 cannot make virtual environments, asking the package manager for $package"
    install_package venv "install $package (Debian and Ubuntu: apt-get install $package), then run it again" "$package"
    rm -rf "$VENV"
    "$1" -m venv "$VENV" || fail "$1 -m venv still fails; install $package or set PYTHON to another Python"
}

find_java() {
    local home
    for home in ${JAVA_HOME:+"$JAVA_HOME"} "$(java_on_path)" "${JAVA_FOLDERS[@]}"; do
        if [[ -n $home ]] && supported_java "$home"; then
            say "Java at $home"
            return
        fi
    done
    return 1
}

java_on_path() {
    local program
    program=$(command -v java) || return 0
    program=$("$VENV/bin/python" -c 'import os, sys; print(os.path.realpath(sys.argv[1]))' "$program")
    dirname "$(dirname "$program")"
}

supported_java() {
    [[ -x $1/bin/java ]] && "$1/bin/java" -version 2>&1 | grep -Eq 'version "(17|21)[."]'
}

install_java() {
    local advice="Java 17 or 21 is needed and none was found; install one (Debian and Ubuntu: apt-get install \
openjdk-17-jre-headless; Fedora: dnf install java-21-openjdk-headless; macOS: brew install openjdk@21) or set JAVA_HOME"
    say "no Java 17 or 21 found, asking the package manager"
    install_package java "$advice"
    find_java || fail "$advice"
}

# For the tests of alerts and dashboards alone.
install_prometheus() {
    if ! command -v promtool >/dev/null || ! command -v prometheus >/dev/null; then
        install_package prometheus "install Prometheus and promtool (Debian and Ubuntu: apt-get install prometheus)" prometheus
    fi
}

# install_package WHAT ADVICE [NAME]: through the first package manager there is, or fail with the advice.
install_package() {
    local what=$1 advice=$2 name=${3:-} manager
    for manager in apt-get dnf yum apk zypper pacman brew; do
        if command -v "$manager" >/dev/null; then
            name=${name:-$(package_name "$manager" "$what")}
            [[ -n $name ]] || fail "$advice"
            try_install "$manager" "$name" || fail "$manager could not install $name. $advice"
            return
        fi
    done
    fail "$advice"
}

package_name() {
    case "$1:$2" in
    apt-get:java) newest_apt_java ;;
    dnf:java | yum:java) echo java-21-openjdk-headless ;;
    apk:java) echo openjdk21-jre-headless ;;
    zypper:java) echo java-21-openjdk-headless ;;
    pacman:java) echo jre21-openjdk-headless ;;
    brew:java) echo openjdk@21 ;;
    apt-get:python) echo "python3 python3-venv" ;;
    dnf:python | yum:python) echo python3.12 ;;
    apk:python | zypper:python | pacman:python) echo python3 ;;
    brew:python) echo python@3.12 ;;
    esac
}

newest_apt_java() {
    as_root apt-get update -qq >&2 || true
    local name
    for name in openjdk-21-jre-headless openjdk-17-jre-headless; do
        if apt-cache show "$name" >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
}

try_install() {
    local names
    read -ra names <<<"$2"
    case "$1" in
    apt-get)
        as_root apt-get update -qq || true
        as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${names[@]}"
        ;;
    dnf | yum) as_root "$1" install -y -q "${names[@]}" ;;
    apk) as_root apk add --quiet "${names[@]}" ;;
    zypper) as_root zypper --quiet --non-interactive install "${names[@]}" ;;
    pacman) as_root pacman -Sy --noconfirm --needed "${names[@]}" ;;
    brew) brew install --quiet "${names[@]}" ;;
    esac
}

as_root() {
    if [[ $EUID -eq 0 ]]; then
        "$@" </dev/null
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo -n "$@" </dev/null
    else
        return 1
    fi
}

fetch_jars() {
    say "fetching the jars for Spark, for tables on S3 and for the demo's broker"
    "$VENV/bin/firnline" jars >/dev/null || fail "the jars could not be fetched"
}

# Wheels of the image's packages, for the test that installs them into an empty environment without a network.
fetch_image_packages() {
    local folder=$VENV/image-packages pins=deploy/docker/requirements.txt wanted
    wanted=$(cksum <"$pins")
    [[ -f $folder/.fetched && $(<"$folder/.fetched") == "$wanted" ]] && return
    say "fetching the packages of $pins"
    rm -rf "$folder"
    # --no-build-isolation: else pip would fetch what builds pyspark, unchecked.
    "$VENV/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-input --no-deps --use-pep517 --no-build-isolation \
        --require-hashes -r "$pins" -w "$folder" ||
        fail "pip could not fetch the packages of $pins; check the network or the package index, then run it again"
    echo "$wanted" >"$folder/.fetched"
}

# Tools of maintainers, in an environment of their own: their dependencies are none of firnline's.
install_tools() {
    local tools=$VENV/tools wanted="uv==0.13.9 pip-audit==2.10.1 cyclonedx-bom==7.5.0"
    [[ -f $tools/.installed && $(<"$tools/.installed") == "$wanted" ]] && return
    say "installing $wanted"
    rm -rf "$tools"
    "$VENV/bin/python" -m venv "$tools"
    # shellcheck disable=SC2086 - several words
    "$tools/bin/python" -m pip install --quiet --disable-pip-version-check --no-input $wanted ||
        fail "pip could not install $wanted; check the network or the package index, then run it again"
    echo "$wanted" >"$tools/.installed"
}

main "$@"
