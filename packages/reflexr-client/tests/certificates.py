"""A certificate of localhost that nobody has issued, with its key: what a private authority's would be to a client."""

import ssl
from pathlib import Path
from typing import Final

PEM: Final = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg7Djy+Cund++qdDSg
dMT4ecJ1Q4oM1xSkIwqi3NDlk8ShRANCAATUSFms7llsL6JoHySJQy4AuELkzcHZ
4e2mLeT19Fz3cIs4nHKF56LKyWcFHwX17sQCYYjCVBWyTJJdPSzlMNXP
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIIBizCCATKgAwIBAgIBATAKBggqhkjOPQQDAjAUMRIwEAYDVQQDDAlsb2NhbGhv
c3QwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBQxEjAQBgNVBAMM
CWxvY2FsaG9zdDBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABNRIWazuWWwvomgf
JIlDLgC4QuTNwdnh7aYt5PX0XPdwiziccoXnosrJZwUfBfXuxAJhiMJUFbJMkl09
LOUw1c+jczBxMBoGA1UdEQQTMBGCCWxvY2FsaG9zdIcEfwAAATAPBgNVHRMBAf8E
BTADAQH/MA4GA1UdDwEB/wQEAwIChDATBgNVHSUEDDAKBggrBgEFBQcDATAdBgNV
HQ4EFgQU3MRQTuB4bNPAoU9m0xmRoNuoqOMwCgYIKoZIzj0EAwIDRwAwRAIgT/tN
8Tm7FXgTIQtJBWXiY101g1jy6kGP6kEgOdMBzBACIBzMwo2v46cckn+jYNDbmOsx
5YBnVvxudbKQOUqAjgm+
-----END CERTIFICATE-----
"""


def server_context(folder: Path) -> ssl.SSLContext:
    """The context of a server that shows the certificate."""
    path = folder / "localhost.pem"
    path.write_text(PEM, encoding="ascii")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def client_context() -> ssl.SSLContext:
    """The context of a client that trusts it, and nothing else."""
    return ssl.create_default_context(cadata=PEM[PEM.index("-----BEGIN CERTIFICATE") :])
