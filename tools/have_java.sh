#!/bin/sh
# Succeed if a Java that Spark can use (17 or newer) is there. Otherwise `make` installs one with pip.
java="${JAVA_HOME:+$JAVA_HOME/bin/}java"
command -v "$java" >/dev/null 2>&1 || exit 1
major=$("$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
[ "${major:-0}" -ge 17 ]
