"""The page's style sheet, and the hash by which its content security policy allows it and nothing else."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root{color-scheme:light dark;--ink:#1c2126;--dim:#5d6873;--line:#dde2e7;--soft:#f5f7f9;--paper:#fff;
--good:#17693a;--bad:#b3261e;--warn:#8a5a00;--bar:#3f72c4}
@media (prefers-color-scheme:dark){:root{--ink:#e4e8ec;--dim:#98a4b0;--line:#343c44;--soft:#1f252b;
--paper:#171b20;--good:#6fd08f;--bad:#ff8a80;--warn:#f0b95b;--bar:#7fa8ee}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1.5rem 1rem 4rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.25rem 0 .5rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
p{margin:.25rem 0 .75rem}
code,pre{font:13px/1.45 ui-monospace,monospace;unicode-bidi:isolate;direction:ltr}
pre{background:var(--soft);padding:.75rem;border-radius:6px;margin:.25rem 0;white-space:pre-wrap;
overflow-wrap:anywhere;max-height:30rem;overflow:auto}
code{overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.2rem 1.25rem;margin:.75rem 0}
dt{color:var(--dim)}
dd{margin:0;min-width:0;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%}
th,td{text-align:left;vertical-align:top;padding:.3rem .75rem .3rem 0;border-bottom:1px solid var(--line);
min-width:4rem;overflow:hidden}
th{color:var(--dim);font-weight:500;white-space:nowrap}
tr.step td{background:var(--soft)}
tr.step td:first-child{font-weight:600}
tr.call td:first-child{padding-left:1.25rem;min-width:11rem}
svg{display:block;width:12rem;height:.9rem;background:var(--soft);border-radius:3px;margin-top:.3rem}
tr.step svg{background:var(--paper)}
rect{fill:var(--bar)}
rect.good{fill:var(--good)}
rect.bad{fill:var(--bad)}
rect.warn{fill:var(--warn)}
.good{color:var(--good)}
.bad{color:var(--bad)}
.warn{color:var(--warn)}
.dim,.gone{color:var(--dim)}
.gone{font-style:italic}
.tag{display:inline-block;padding:0 .5rem;border:1px solid currentColor;border-radius:1rem;font-size:.85rem;
white-space:nowrap;font-weight:500}
.alarm{border-left:4px solid var(--bad);background:var(--soft);padding:.6rem .9rem;margin:1rem 0}
.alarm ul{margin:.25rem 0;padding-left:1.2rem}
details{margin:.25rem 0}
summary{cursor:pointer}
tbody{content-visibility:auto}
""".strip()

HASH: Final = "sha256-ALp19SAkVcVBnsV/Q1ILwSNhXELrnwRNMKx1/MOPvBM="
"""Of the sheet, in base64; a test computes it."""

POLICY: Final = f"default-src 'none'; style-src '{HASH}'; base-uri 'none'; form-action 'none'"
