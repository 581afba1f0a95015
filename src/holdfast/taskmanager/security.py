"""The job's secret guards every connection between its processes: TLS on both sides, with certificates made of it.

    secret ──► the job's authority: a key pair, derived, so the same in every process that knows the secret
                  └──► a certificate of this process's own, signed by the authority

The driver makes a secret for each start of a job. The secret travels in Spark's task closures only, is never logged,
and never crosses these connections. A process that does not know it has no certificate and fails at the handshake. A
check of headers would come too late to protect memory, since gRPC reads the body of a call before a handler sees its
headers.
"""

import datetime
import functools
import secrets
from typing import Any, NamedTuple

import pyarrow.flight as flight
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

SECRET_CHARACTERS_MIN = 32
HOST = "holdfast"
"""The name in every certificate: a connection is trusted for the signature, not for the machine of the process."""

CURVE = ec.SECP256R1()
CURVE_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
SEED_BYTES = 48
"""Bytes of the seed of a key: 16 more than the curve's order has, so that the remainder favours no key noticeably."""

VALID_FROM = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
VALID_TO = datetime.datetime(2099, 12, 31, tzinfo=datetime.UTC)
"""Certificates do not expire by themselves, since clocks of machines may differ; they are useless once the job's secret
is."""

GRPC_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A channel of this client alone, so that no back-off after an earlier TaskManager at this address delays a call.
    ("grpc.use_local_subchannel_pool", 1),
    # Also the time a connection attempt may take: a machine that does not answer is given up soon.
    ("grpc.min_reconnect_backoff_ms", 3000),
    ("grpc.initial_reconnect_backoff_ms", 1000),
    ("grpc.enable_http_proxy", 0),
]


class Credentials(NamedTuple):
    """PEM: the certificate of the job's authority, and this process's own certificate and key."""

    authority: bytes
    certificate: bytes
    key: bytes


def new_secret() -> str:
    """A fresh secret for a job: 256 random bits, as text."""
    return secrets.token_hex(32)


@functools.lru_cache(maxsize=8)
def credentials(secret: str) -> Credentials:
    """Return the certificate that a process shows, and the authority that it requires; made once per process."""
    if len(secret) < SECRET_CHARACTERS_MIN:
        raise ValueError(f"a job's secret has at least {SECRET_CHARACTERS_MIN} characters; make it with new_secret()")
    seed = HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=b"holdfast authority").derive(secret.encode())
    authority_key = ec.derive_private_key(1 + int.from_bytes(seed) % (CURVE_ORDER - 1), CURVE)
    own_key = ec.generate_private_key(CURVE)
    authority = _signed("holdfast authority", authority_key, authority_key, is_authority=True)
    certificate = _signed(HOST, own_key, authority_key, is_authority=False)
    key = own_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Credentials(authority, certificate, key)


def _signed(name: str, of: ec.EllipticCurvePrivateKey, by: ec.EllipticCurvePrivateKey, *, is_authority: bool) -> bytes:
    """A certificate for the key `of`, signed with the key `by` of the authority."""
    certificate = (
        x509.CertificateBuilder()
        .subject_name(_named(name))
        .issuer_name(_named("holdfast authority"))
        .public_key(of.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(VALID_FROM)
        .not_valid_after(VALID_TO)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .sign(by, hashes.SHA256())
    )
    return certificate.public_bytes(Encoding.PEM)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def server_options(secret: str) -> dict[str, Any]:
    """Arguments for `FlightServerBase`: a client must show a certificate of the job's authority to connect."""
    own = credentials(secret)
    return {
        "tls_certificates": [(own.certificate, own.key)],
        "verify_client": True,
        "root_certificates": own.authority,
    }


def connect(address: str, secret: str) -> Any:
    """A Flight client for `address` ("grpc+tls://host:port") of the same job. Connects at its first call."""
    own = credentials(secret)
    return flight.FlightClient(
        address,
        tls_root_certs=own.authority,
        cert_chain=own.certificate,
        private_key=own.key,
        override_hostname=HOST,
        generic_options=GRPC_OPTIONS,
    )
