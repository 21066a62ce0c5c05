"""The keys of the example app stay secret and prove what they should."""

import subprocess
import sys

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from loopback import APP


def test_secrets_are_for_their_owner_only_and_the_certificate_is_signed_for_the_host(tmp_path):
    command = [sys.executable, APP / "make_keys.py", tmp_path, "--nodes", "2", "--host", "fl.example.org"]
    subprocess.run(command, check=True)
    for secret in ("superlink.key", "supernode-0", "supernode-1"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0, secret
    authority = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    shown = x509.load_pem_x509_certificate((tmp_path / "superlink.pem").read_bytes())
    shown.verify_directly_issued_by(authority)
    names = shown.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["fl.example.org"]
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    publics = {(tmp_path / f"supernode-{number}.pub").read_bytes() for number in range(2)}
    assert len(publics) == 2
    private = serialization.load_ssh_private_key((tmp_path / "supernode-0").read_bytes(), password=None)
    mine = private.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    assert mine in publics
