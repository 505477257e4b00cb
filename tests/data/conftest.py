"""Published sets with few records, and a network of the test's own."""

import email.message
import io
import urllib.request
import urllib.response

import pytest
from small_published import publish  # noqa: F401


class Network(urllib.request.BaseHandler):
    """Answers every address, in the place of `urllib`'s own handlers."""

    handler_order = 0

    def __init__(self, answer):
        self.answer, self.asked = answer, []

    def https_open(self, request):
        self.asked.append(request.full_url)
        found = self.answer(request.full_url)
        body = io.BytesIO(found) if isinstance(found, bytes) else found
        found = urllib.response.addinfourl(body, email.message.Message(), request.full_url, 200)
        found.msg = "OK"
        return found

    http_open = https_open


@pytest.fixture
def network():
    """network(answer: address -> bytes or a file) -> the list of addresses that were asked."""

    def installed(answer):
        handler = Network(answer)
        urllib.request.install_opener(urllib.request.build_opener(handler))
        return handler.asked

    yield installed
    urllib.request.install_opener(None)


@pytest.fixture
def no_network(network):
    """The list of addresses that were asked, all in vain."""

    def answer(address):
        raise urllib.error.URLError("no network in this test")

    return network(answer)
