#!/usr/bin/env bash
# Writes prometheus-rule.yaml: the rules of deploy/prometheus/firnline.rules.yaml as the Prometheus operator takes them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
{
    cat <<'HEAD'
# Made by make-prometheus-rule.sh from deploy/prometheus/firnline.rules.yaml; a test holds it up to date.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: firnline
spec:
HEAD
    sed '/^#/d; s/^\(.\)/  \1/' ../../../prometheus/firnline.rules.yaml
} >prometheus-rule.yaml
