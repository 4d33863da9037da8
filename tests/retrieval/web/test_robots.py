"""robots.txt as RFC 9309 has it; expected values are its own examples, and Google's of its specification."""

from __future__ import annotations

import pytest

from mem1.retrieval.web.robots import NOTHING, Rules, read_rules

RFC = """User-Agent: *
Disallow: *.gif$
Disallow: /example/
Allow: /publications/

User-Agent: foobot
Disallow:/
Allow:/example/page.html
Allow:/example/allowed.gif

User-Agent: barbot
User-Agent: bazbot
Disallow: /example/page.html

User-Agent: quxbot
"""


@pytest.mark.parametrize(
    ("agent", "path", "allowed"),
    [
        ("mem1", "/a.gif", False),
        ("mem1", "/a.gif?b", True),
        ("mem1", "/example/page.html", False),
        ("mem1", "/publications/", True),
        ("mem1", "/", True),
        ("foobot", "/", False),
        ("foobot", "/example/page.html", True),
        ("foobot", "/example/allowed.gif", True),
        ("barbot", "/example/page.html", False),
        ("bazbot", "/example/page.html", False),
        ("bazbot", "/example/", True),
        ("quxbot", "/example/page.html", True),
    ],
)
def test_the_example_of_the_rfc(agent: str, path: str, allowed: bool):
    assert read_rules(RFC, agent=agent).allow(path) is allowed


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("/", ["/", "/fish"], []),
        ("/fish", ["/fish", "/fish.html", "/fishheads/", "/fish?id=1"], ["/Fish", "/catfish", "/"]),
        ("/fish*", ["/fish", "/fish.html", "/fishheads/"], ["/Fish", "/catfish"]),
        ("/fish/", ["/fish/", "/fish/?id=1", "/fish/salmon"], ["/fish", "/fish.html"]),
        ("/*.php", ["/index.php", "/a/b.php?c", "/filename.php5"], ["/", "/windows.PHP"]),
        ("/*.php$", ["/filename.php", "/folder/filename.php"], ["/filename.php?a", "/filename.php/", "/windows.PHP"]),
        ("/fish*.php", ["/fish.php", "/fishheads/catfish.php?a"], ["/Fish.PHP", "/fish"]),
        ("/*/private/", ["/a/private/b", "/a/b/private/"], ["/private/", "/a/private"]),
        ("/page$", ["/page"], ["/page/", "/pages"]),
        ("/a*b*b$", ["/abb", "/axbxb"], ["/ab", "/abbc"]),
        ("/*a*a*a*a*a*a*a*a*a*b", ["/aaaaaaaaab"], ["/" + "a" * 2000]),
        ("/%7ejoe/s%c3%b8k", ["/~joe/s%C3%B8k"], ["/joe"]),
        ("/søk", ["/s%C3%B8k"], ["/sok"]),
        ("/a%2fb", ["/a%2Fb"], ["/a/b"]),
        ("", [], ["/", "/a"]),
        ("private", [], ["/private", "/"]),
    ],
)
def test_a_pattern_matches_the_beginning_of_a_path(pattern: str, matching: list[str], others: list[str]):
    rules = read_rules(f"User-agent: *\nDisallow: {pattern}", agent="mem1")
    assert [path for path in (*matching, *others) if not rules.allow(path)] == matching


@pytest.mark.parametrize(
    ("text", "path", "allowed"),
    [
        ("Allow: /p\nDisallow: /", "/page", True),
        ("Allow: /\nDisallow: /private/", "/private/x", False),
        ("Allow: /folder\nDisallow: /folder", "/folder/page", True),
        ("Allow: /page\nDisallow: /*.htm", "/page.htm", False),
        ("Allow: /$\nDisallow: /", "/", True),
        ("Allow: /$\nDisallow: /", "/page.htm", False),
    ],
)
def test_the_longest_rule_counts_and_of_equally_long_ones_the_one_that_allows(text: str, path: str, allowed: bool):
    assert read_rules(f"User-agent: *\n{text}", agent="mem1").allow(path) is allowed


@pytest.mark.parametrize(
    "text",
    [
        "user-agent: MEM1/0.3 (a crawler)\ndisallow: /a",
        "USER-AGENT : mem1 # ours\rDisallow : /a # all of it\r",
        "User-agent: mem1\nAllow: /b\n\nUser-agent: x\nDisallow: /c\n\nUser-agent: mem1\nDisallow: /a",
        "User-agent: x\nSitemap: /s.xml\nCrawl-delay: \u00b2\n\nUser-agent: mem1\nno rule\nDisallow: /a",
        "\ufeffUser-agent: *\r\nDisallow: /\r\n\r\nUser-agent: mem1\r\nDisallow: /a",
    ],
)
def test_the_groups_of_the_agent_are_read_together_and_in_place_of_those_of_all(text: str):
    rules = read_rules(text, agent="mem1")
    assert (rules.allow("/a"), rules.allow("/c")) == (False, True)


def test_without_a_rule_everything_is_allowed_and_nothing_forbids_all():
    texts = ("", "<html>no such page</html>", "Disallow: /", "User-agent: x\nDisallow: /")
    assert [text for text in texts if read_rules(text, agent="mem1") != Rules()] == []
    assert Rules().allow("/a") and not NOTHING.allow("/") and not NOTHING.allow("/a?b")


def test_many_agents_and_rules_take_time_in_proportion():
    text = "".join(f"User-agent: a{number}\n" for number in range(20_000)) + "Allow: /a\n" * 20_000
    assert read_rules(text, agent="mem1") == Rules()
    assert len(read_rules(f"User-agent: *\n{text}", agent="mem1").rules) == 20_000
