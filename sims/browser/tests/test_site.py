"""What the browser may be given: nothing but what was lent a name, and nothing outside of a folder."""

import http.client
from urllib.parse import quote

import pytest
from mmrl_browser.site import Page, Site, folder


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    root = tmp_path_factory.mktemp("site")
    (root / "pages").mkdir()
    (root / "pages" / "index.html").write_text("<p>one</p>")
    (root / "pages" / "a b.html").write_text("<p>two</p>")
    (root / "secret.txt").write_text("secret")
    (root / "pages" / "out").symlink_to(root / "secret.txt")
    (root / "pages" / "up").symlink_to(root)
    made = Site()
    made.host("here", folder(root / "pages"))
    made.host("text", lambda path: Page(b"<p>three</p>", "text/html", False) if path == "3" else None)
    yield made
    made.close()


def ask(site, target, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.putrequest(method, target, skip_host=True)
    connection.putheader("Content-Length", str(len(body or b"")))
    connection.endheaders(body)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_pages_are_given_under_their_names(site):
    assert ask(site, "http://here.mmrl.test/") == (200, b"<p>one</p>")
    assert ask(site, "http://here.mmrl.test/a%20b.html?q=1#x") == (200, b"<p>two</p>")
    assert ask(site, "http://text.mmrl.test/3") == (200, b"<p>three</p>")
    assert ask(site, "http://text.mmrl.test/4") == (404, b"")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "%2e%2e/secret.txt",
        "..%2fsecret.txt",
        "pages/../../secret.txt",
        "out",
        "up/secret.txt",
        quote("/etc/passwd"),
        "%2fetc%2fpasswd",
        "\\..\\secret.txt",
        "%00",
        "a" * 5000,
    ],
)
def test_nothing_outside_of_a_folder_is_given(site, path):
    status, body = ask(site, f"http://here.mmrl.test/{path}")
    assert status == 404 and body == b""


@pytest.mark.parametrize(
    "target",
    [
        "http://example.com/",
        "http://127.0.0.1:22/",
        "http://localhost/",
        "http://here.mmrl.test.example.com/",
        "http://evil@here.mmrl.test:80/",
        "file:///etc/passwd",
        "/etc/passwd",
        "https://here.mmrl.test/",
    ],
)
def test_nobody_else_is_asked(site, target):
    site.refused.clear()
    assert ask(site, target) == (204, b"")
    assert list(site.refused) == [target]


def test_tunnels_and_forms_are_refused(site):
    site.refused.clear()
    assert ask(site, "example.com:443", "CONNECT")[0] == 403
    for method in ("POST", "PUT", "DELETE"):
        assert ask(site, "http://example.com/form", method, b"a=1")[0] == 204
    assert len(site.refused) == 4


def test_a_form_to_a_page_of_ours_leads_nowhere(site):
    assert ask(site, "http://here.mmrl.test/", "POST", b"a=1") == (204, b"")


def test_a_name_that_was_taken_back_is_nobodys(site):
    site.host("gone", lambda path: Page(b"x", "text/html", False))
    assert ask(site, "http://gone.mmrl.test/")[0] == 200
    site.drop("gone")
    assert ask(site, "http://gone.mmrl.test/")[0] == 204
