"""A person with a browser, at a provider whose forms ask for a name and then for consent.

  person.py CA open URL NAME             opens a page, logs in as NAME, and goes wherever the provider sends the browser
  person.py CA end URL NAME              the same, but prints the address to which the provider sends the browser
  person.py CA token ISSUER CLIENT NAME   prints an ID token for that client, by a login of its own
"""

import base64
import hashlib
import html.parser
import http.cookiejar
import json
import ssl
import sys
import urllib.error
import urllib.parse
import urllib.request

PAGES_MAX = 12


class Form(html.parser.HTMLParser):
    """The first form of a page."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields = None, {}
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes["action"]
        elif tag == "input" and "name" in attributes:
            self.fields.setdefault(attributes["name"], attributes.get("value") or "")


class Stay(urllib.request.HTTPRedirectHandler):
    """Follows redirects at the provider alone, and keeps the first one to somewhere else."""

    def __init__(self, provider):
        self.provider, self.elsewhere = provider, None

    def redirect_request(self, request, answer, code, message, headers, url):
        if not url.startswith(self.provider):
            self.elsewhere = url
            return None
        return super().redirect_request(request, answer, code, message, headers, url)


def origin(url):
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}/"


class Browser:
    def __init__(self, ca, provider):
        self.stay = Stay(provider)
        context = ssl.create_default_context(cafile=ca)
        # The cluster's certificates do not name their authority's key.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        tls = urllib.request.HTTPSHandler(context=context)
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        no_proxy = urllib.request.ProxyHandler({})
        self.opener = urllib.request.build_opener(no_proxy, tls, cookies, self.stay)

    def load(self, url, fields=None):
        data = None if fields is None else urllib.parse.urlencode(fields).encode()
        try:
            with self.opener.open(url, data, timeout=30) as answer:
                return answer.geturl(), answer.read().decode()
        except urllib.error.HTTPError as refused:
            if self.stay.elsewhere:
                return url, ""
            sys.exit(f"{url}: {refused.code}: {refused.read().decode()}")

    def log_in(self, url, name):
        """Fills in forms until there is none, or the provider sends the browser elsewhere: returns that address."""
        at, page = self.load(url)
        for _ in range(PAGES_MAX):
            if self.stay.elsewhere:
                return self.stay.elsewhere
            form = Form(page)
            if form.action is None:
                return None
            fields = {**form.fields, **{field: name for field in ("login", "password") if field in form.fields}}
            at, page = self.load(urllib.parse.urljoin(at, form.action), fields)
        sys.exit(f"no end of forms: {page}")


def token(ca, issuer, client, name):
    browser = Browser(ca, origin(issuer))
    _, document = browser.load(f"{issuer}/.well-known/openid-configuration")
    document = json.loads(document)
    verifier = "v" * 64
    challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    redirect = "http://127.0.0.1/"
    query = {
        "client_id": client, "response_type": "code", "scope": "openid profile", "redirect_uri": redirect,
        "code_challenge": challenge, "code_challenge_method": "S256", "state": "s",
    }
    back = browser.log_in(f"{document['authorization_endpoint']}?{urllib.parse.urlencode(query)}", name)
    code = urllib.parse.parse_qs(urllib.parse.urlsplit(back).query)["code"][0]
    fields = {
        "grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": redirect,
        "code_verifier": verifier,
    }
    _, answer = browser.load(document["token_endpoint"], fields)
    print(json.loads(answer)["id_token"])


def main(ca, what, *rest):
    if what == "token":
        return token(ca, *rest)
    url, name = rest
    back = Browser(ca, origin(url)).log_in(url, name)
    if what == "end":
        print(back)
    elif back:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(back, timeout=30) as answer:
            answer.read()


main(*sys.argv[1:])
