"""The console: a page in the browser that shows a server, its tables and their lakes (docs/console.md).

    session.py   what a running console holds: the connection, the lakes, its workers and its memory of answers
    tables.py    tables, one table, its rows, its live tail, one key
    statements.py   the SQL box
    visitors.py  who may see what: tokens, logins, sessions; which hosts and origins are answered
    serving.py   the HTTP server: deadlines of requests, and how many connections there may be
    app.py       the web application: from requests to functions of the modules above, and back to JSON
    static/      the page: ES modules that run as they are, without a build

A function of a screen takes the `Console` first, then plain arguments, and returns what JSON has. It raises Forebay's
errors. What a cluster does not tell is None, and a sentence in "missing" says so.
"""
