"""Makes all keys and certificates of a federation: python make_keys.py keys --nodes 3

keys/ca.pem                            for everybody: proves that the SuperLink is the right one
keys/superlink.pem, superlink.key      for the SuperLink alone
keys/supernode-0, supernode-0.pub ...  the private half for one SuperNode alone, the public half to register it

For a federation on one machine as it is. For a real one name the SuperLink's host (--host), take the certificate of
your own authority if you have one, and let each SuperNode make its own pair (ssh-keygen -t ecdsa -b 384), so that no
private key ever travels.
"""

import argparse
import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PRIVATE = serialization.PrivateFormat.OpenSSH
YEARS = 2


def write(path: Path, content: bytes, secret: bool = False) -> None:
    """A secret is readable by its owner only, from the first moment."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)


def private_pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: x509.Name, signer: ec.EllipticCurvePrivateKey, hosts: list[str]
) -> x509.Certificate:
    """Signed by `signer`; without hosts it is that of an authority."""
    now = datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.BasicConstraints(ca=not hosts, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if hosts:
        made = made.add_extension(x509.SubjectAlternativeName([host_name(host) for host in hosts]), critical=False)
    return made.sign(signer, hashes.SHA256())


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def make(folder: Path, nodes: int, hosts: list[str]) -> None:
    """All of them, new."""
    folder.mkdir(parents=True, exist_ok=True)
    authority, superlink = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "federation authority")])
    root = certificate("federation authority", authority, issuer, authority, [])
    proof = certificate("superlink", superlink, issuer, authority, hosts)
    write(folder / "ca.pem", root.public_bytes(serialization.Encoding.PEM))
    write(folder / "superlink.pem", proof.public_bytes(serialization.Encoding.PEM))
    write(folder / "superlink.key", private_pem(superlink, serialization.PrivateFormat.PKCS8), secret=True)
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        write(folder / f"supernode-{number}", private_pem(key, PRIVATE), secret=True)
        write(folder / f"supernode-{number}.pub", public)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--host", action="append", default=[], help="a name or address of the SuperLink")
    given = parser.parse_args()
    make(given.folder, given.nodes, given.host or ["127.0.0.1", "localhost"])
