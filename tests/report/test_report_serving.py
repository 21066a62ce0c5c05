"""The server serves the report, only the report, and only to this machine."""

import http.client
import json
import threading

import pytest

from kasync.errors import UserError
from kasync.report.page import serve, sources
from kasync.serving import server


@pytest.fixture(scope="module")
def port(small):
    with server(*sources(small)) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made.server_address[1]
        made.shutdown()


def ask(port, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode(), answer.headers


def test_the_page_asks_only_its_own_server_for_newer_data(port):
    status, page, headers = ask(port, "/")
    assert status == 200
    assert "connect-src 'self'" in page
    assert '<meta name="kasync-live" content="data.json">' in page
    assert headers["Cache-Control"] == "no-store"


def test_data_that_have_not_changed_are_not_sent_again(port):
    status, text, headers = ask(port, "/data.json")
    assert status == 200
    assert json.loads(text)["finished"] == 30
    assert ask(port, "/data.json", **{"If-None-Match": headers["ETag"]})[:2] == (304, "")


@pytest.mark.parametrize("path", ["/experiments/staleness-quick.json", "/../../etc/passwd", "/runs/", "/data.json/.."])
def test_nothing_else_is_served(port, path):
    assert ask(port, path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_sent(port, method):
    assert ask(port, "/", method)[0] == 501


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example"])
def test_a_name_of_another_site_that_points_here_is_refused(port, host):
    assert ask(port, "/data.json", Host=host)[0] == 403


def test_only_this_machine_is_listened_to(small):
    with server(*sources(small)) as made:
        assert made.server_address[0] == "127.0.0.1"


def test_a_port_in_use_and_a_port_that_is_none_are_sentences(small, port, tmp_path):
    with pytest.raises(UserError, match=f"port = {port} cannot be used"):
        serve(small, port)
    with pytest.raises(UserError, match="port = 70000"):
        serve(small, 70000)
    with pytest.raises(UserError, match="not a results folder"):
        serve(tmp_path)
