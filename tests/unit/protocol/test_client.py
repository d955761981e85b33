"""The client of one server: versions, responses in order, and what a server must not do."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S

from pyspark_kafkalog.errors import AuthenticationError, CorruptRecordError, NetworkError, UnsupportedApiError
from pyspark_kafkalog.protocol.api import APIS, FRAME_SIZE, ApiKey, ParsedRequest, joined, parse_request
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import ApiVersion, ApiVersionsResponse
from pyspark_kafkalog.protocol.messages.groups import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
)
from pyspark_kafkalog.protocol.messages.records import ProduceRequest

#: The newest version of ApiVersions, in which a server is asked first.
NEWEST = APIS[ApiKey.API_VERSIONS].versions[-1]

Answer = Callable[[ParsedRequest], bytes]


class Server:
    """The other end of a connection: answers each request with what `answer` returns, and notes it."""

    def __init__(self, connection: socket.socket, answer: Answer) -> None:
        self.requests: list[ParsedRequest] = []
        self._connection = connection
        self._answer = answer
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with self._connection, self._connection.makefile("rb") as received:
            while size := received.read(4):
                request = parse_request(received.read(FRAME_SIZE.unpack(size)[0]))
                self.requests.append(request)
                self._connection.sendall(self._answer(request))

    def stop(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


Connect = Callable[..., tuple[WireClient, Server]]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """A client of a server with this `answer`."""
    open_ends: list[tuple[WireClient, Server]] = []

    def start(answer: Answer, *, timeout_s: float = 10.0, frame_bytes_max: int = 1000) -> tuple[WireClient, Server]:
        ours, theirs = socket.socketpair()
        client = WireClient(ours, client_id="c", timeout_s=timeout_s, frame_bytes_max=frame_bytes_max)
        open_ends.append((client, Server(theirs, answer)))
        return open_ends[-1]

    yield start
    for client, server in open_ends:
        client.close()
        server.stop()


def answering(*versions: ApiVersion) -> Answer:
    """ApiVersions with these versions; Heartbeat with the generation as its error code."""

    def answer(request: ParsedRequest) -> bytes:
        if request.api.key == ApiKey.API_VERSIONS:
            known = next(each.max_version for each in versions if each.api_key == ApiKey.API_VERSIONS)
            if request.api_version > known:
                refused = ApiVersionsResponse(error_code=35, api_keys=versions)
                return _in_version_0(request, refused)
            return joined(request.encode_response(ApiVersionsResponse(api_keys=versions)))
        body = request.body()
        assert isinstance(body, HeartbeatRequest)
        return joined(request.encode_response(HeartbeatResponse(error_code=body.generation_id)))

    return answer


def _in_version_0(request: ParsedRequest, response: ApiVersionsResponse) -> bytes:
    content = request.correlation_id.to_bytes(4, "big") + response.encode(0)
    return FRAME_SIZE.pack(len(content)) + content


def offered(key: ApiKey, low: int, high: int) -> ApiVersion:
    return ApiVersion(api_key=key, min_version=low, max_version=high)


@pytest.mark.parametrize(("server", "agreed"), [((0, 4), 4), ((0, 2), 2), ((3, 9), 4)])
def test_requests_have_the_newest_version_of_both(connect: Connect, server: tuple[int, int], agreed: int) -> None:
    client, other = connect(answering(offered(ApiKey.API_VERSIONS, 0, NEWEST), offered(ApiKey.HEARTBEAT, *server)))
    client.negotiate()
    assert client.version(ApiKey.HEARTBEAT) == agreed
    assert client.call(HeartbeatRequest(generation_id=7), HeartbeatResponse).error_code == 7
    assert [each.api_version for each in other.requests] == [NEWEST, agreed]
    assert other.requests[-1].client_id == "c"


@pytest.mark.parametrize("newest", [0, 2, 3, 4])
def test_older_server_is_asked_for_its_versions_again(connect: Connect, newest: int) -> None:
    client, other = connect(answering(offered(ApiKey.API_VERSIONS, 0, newest), offered(ApiKey.HEARTBEAT, 0, 1)))
    client.negotiate()
    assert client.version(ApiKey.HEARTBEAT) == 1
    assert [each.api_version for each in other.requests] == [NEWEST, newest]


def test_api_that_the_server_lacks_is_refused(connect: Connect) -> None:
    client, _ = connect(answering(offered(ApiKey.API_VERSIONS, 0, NEWEST), offered(ApiKey.HEARTBEAT, 5, 7)))
    client.negotiate()
    for key in (ApiKey.HEARTBEAT, ApiKey.FETCH):
        with pytest.raises(UnsupportedApiError, match=key.name):
            client.version(key)


def test_responses_come_in_the_order_of_requests(connect: Connect) -> None:
    client, _ = connect(answering())
    for number in range(5):
        client.send(HeartbeatRequest(generation_id=number), version=number)
    with pytest.raises(ValueError, match="5 responses are to be received"):
        client.call(HeartbeatRequest(), HeartbeatResponse, version=0)
    with pytest.raises(ValueError, match="that of HEARTBEAT"):
        client.receive(LeaveGroupResponse)
    assert [client.receive(HeartbeatResponse).error_code for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="no response is due"):
        client.receive(HeartbeatResponse)


def test_produce_without_acks_waits_for_no_response(connect: Connect) -> None:
    client, other = connect(
        lambda request: b"" if request.api.key == ApiKey.PRODUCE else answering()(request), timeout_s=10.0
    )
    client.send(ProduceRequest(acks=0), version=9)
    assert client.call(HeartbeatRequest(generation_id=3), HeartbeatResponse, version=0).error_code == 3
    assert [each.api.key for each in other.requests] == [ApiKey.PRODUCE, ApiKey.HEARTBEAT]


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (bytes.fromhex("00000006 00000063 0000"), "correlation id 0"),
        (bytes.fromhex("7fffffff"), "a frame of at most 1000 bytes"),
        (bytes.fromhex("ffffffff"), "a frame of at most 1000 bytes"),
        (bytes.fromhex("00000003 000000"), "4 bytes"),
        (bytes.fromhex("00000007 00000000 0000 ff"), "the end of HeartbeatResponse"),
    ],
)
def test_response_that_breaks_the_protocol_closes_the_client(connect: Connect, answer: bytes, match: str) -> None:
    client, _ = connect(lambda _: answer)
    with pytest.raises(CorruptRecordError, match=match):
        client.call(HeartbeatRequest(), HeartbeatResponse, version=0)
    with pytest.raises(NetworkError):
        client.call(HeartbeatRequest(), HeartbeatResponse, version=0)


@pytest.mark.parametrize("answer", [b"", b"\0\0", bytes.fromhex("0000000a 0000")])
def test_server_that_does_not_answer_is_left_in_time(connect: Connect, answer: bytes) -> None:
    client, _ = connect(lambda _: answer, timeout_s=0.02)
    with pytest.raises(NetworkError, match="no response to HEARTBEAT"):
        client.call(HeartbeatRequest(), HeartbeatResponse, version=0)


@pytest.mark.parametrize("sent", [b"", bytes.fromhex("0000000a 0000")])
def test_connection_that_the_server_closes_is_an_error(sent: bytes) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        client = WireClient(ours, client_id="c", timeout_s=10.0)
        client.send(LeaveGroupRequest(group_id="g"), version=0)
        theirs.sendall(sent)
        theirs.shutdown(socket.SHUT_WR)
        with pytest.raises(NetworkError, match="closed the connection instead of answering LEAVE_GROUP"):
            client.receive(LeaveGroupResponse)


def test_server_that_is_not_there_is_an_error() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(NetworkError, match=f"cannot connect to 127.0.0.1:{port}"):
            WireClient.connect("127.0.0.1", port, client_id="c", timeout_s=1.0)


def test_client_and_server_speak_tls(tmp_path: Path) -> None:
    certificate = write_certificate(tmp_path)
    server_side = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server_side.load_cert_chain(certificate)
    client_side = ssl.create_default_context(cafile=certificate)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept(trusted: bool) -> None:
            connection = listener.accept()[0]
            if not trusted:
                with connection, pytest.raises(ssl.SSLError):
                    server_side.wrap_socket(connection, server_side=True)
                return
            Server(server_side.wrap_socket(connection, server_side=True), answering()).stop()

        for trusted in (True, False):
            thread = threading.Thread(target=accept, args=(trusted,))
            thread.start()
            port = listener.getsockname()[1]
            context = client_side if trusted else ssl.create_default_context()
            if trusted:
                with WireClient.connect("localhost", port, client_id="c", timeout_s=10.0, tls=context) as client:
                    assert client.call(HeartbeatRequest(generation_id=4), HeartbeatResponse, version=4).error_code == 4
            else:
                with pytest.raises(AuthenticationError, match="certificate"):
                    WireClient.connect("localhost", port, client_id="c", timeout_s=10.0, tls=context)
            thread.join(PATIENCE_S)


def write_certificate(directory: Path) -> Path:
    """A file with a key and a certificate of localhost, which signs itself."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = directory / "localhost.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return path
