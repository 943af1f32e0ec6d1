"""The lake options that clients may see: an allow-list of names, with secrets removed from the values.

Everything else is withheld. The list names what may be published rather than what may not, because lakes have
options that no list of secrets covers: tokens, headers, credentials of further file systems. A client that needs
more gets it from its own user (`lake_options`), and an operator adds names with the setting `datalake.public-
options`.

Values that are addresses lose user names, passwords and parameters: `jdbc:mysql://root:pw@db/lake?user=x` is
published as `jdbc:mysql://db/lake`. An address that cannot be cleaned for certain is withheld.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "******"
"""The replacement for a value that is not shown."""

_PUBLIC = """
    warehouse name type metastore uri catalog-type catalog-impl io-impl py-io-impl py-catalog-impl prefix
    catalog-key table.type case-sensitive allow-upper-case cache-enabled
    lock.enabled lock.type lock-check-max-sleep lock-acquire-timeout
    jdbc.user jdbc.schema-version client-pool-size
    token.provider data-token.enabled dlf.region dlf.oss-endpoint
    location-in-properties hive-conf-dir hadoop-conf-dir hive.hive2-compatible hive.kerberos-authentication
    oauth2-server-uri scope audience resource header.x-iceberg-access-delegation
    rest.sigv4-enabled rest.signing-name rest.signing-region
    client.region s3.endpoint s3.region s3.path-style-access s3.path.style.access s3.force-virtual-addressing
    s3.conditional-put s3.remote-signing-enabled s3.signer s3.signer.uri s3.signer.endpoint s3.anonymous
    s3.connect-timeout s3.request-timeout
    s3a.endpoint s3a.path.style.access fs.s3a.endpoint fs.s3a.path.style.access fs.s3a.endpoint.region
    fs.oss.endpoint fs.oss.region fs.obs.endpoint fs.cosn.bucket.region
    glue.id glue.region glue.endpoint dynamodb.region
    gcs.project-id gcs.service.host adls.account-name adls.account-host hdfs.host hdfs.port
"""

PUBLIC_OPTIONS = frozenset(_PUBLIC.split())
"""Options (in lower case), for any format, that say where a lake is and how to access it. None is a secret."""

HARMLESS_PARAMETERS = frozenset({"ssl", "sslmode", "usessl", "servertimezone", "characterencoding", "useunicode"})
"""Parameters of addresses (in lower case) that are no secrets."""

_CONTAINER_SCHEMES = ("abfs", "abfss", "wasb", "wasbs")
"""Schemes with a container in the place of a user name."""

ADDRESS = re.compile(r"(?P<scheme>(?:jdbc:)?[A-Za-z][A-Za-z0-9+.:-]*)://(?P<rest>.*)", re.DOTALL)
"""An address: its scheme, and the rest."""

NEXT_ADDRESS = re.compile(r",\s*(?=[A-Za-z][A-Za-z0-9+.-]*://)")
"""The comma between two addresses of one value."""

_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]*\]|[^:\[\]()@\s]*)(:\d*)?")


def public_options(options: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """The options that clients may see, including `also`, with secrets removed from their values."""
    names = PUBLIC_OPTIONS | {name.lower() for name in also}
    visible = {key: without_secrets(value) for key, value in options.items() if key.lower() in names}
    return {key: value for key, value in visible.items() if value is not None}


def without_secrets(value: str) -> str | None:
    """`value` without user names, passwords and parameters of addresses; None if that cannot be done reliably."""
    parts = [_clean_address(part) for part in NEXT_ADDRESS.split(value)]
    return None if None in parts else ",".join(part for part in parts if part is not None)


def _clean_address(text: str) -> str | None:
    match = ADDRESS.fullmatch(text)
    if match is None:
        if text.startswith(("/", "./", "../")):
            return text
        cleaned = _without_parameters(text)  # a word, or a value like jdbc:sqlite:/lake/catalog.db
        return None if "@" in cleaned else cleaned
    scheme, rest = match["scheme"], match["rest"]
    end = next((i for i, letter in enumerate(rest) if letter in "/?#;"), len(rest))
    authority, path = rest[:end], rest[end:]
    user, at, hosts = authority.rpartition("@")
    if scheme in _CONTAINER_SCHEMES and at and ":" not in user:
        hosts = authority
    elif not all(_HOST.fullmatch(host) for host in hosts.split(",")):
        return None  # a password with '/' in it ends the address early
    cleaned = _without_parameters(path)
    if "@" in cleaned and ":" in hosts:
        return None
    return f"{scheme}://{hosts}{cleaned}"


def _without_parameters(text: str) -> str:
    """`text` without its fragment and without parameters, after '?' or ';', that are not known to be harmless."""
    plain = text.partition("#")[0]
    start = next((i for i, letter in enumerate(plain) if letter in "?;"), len(plain))
    harmless = [
        part
        for part in re.split(r"[?&;]", plain[start + 1 :])
        if part.partition("=")[0].strip().lower() in HARMLESS_PARAMETERS
    ]
    separator = plain[start : start + 1]
    return plain[:start] + (separator + ("&" if separator == "?" else ";").join(harmless) if harmless else "")
