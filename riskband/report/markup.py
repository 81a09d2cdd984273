# ruff: noqa: E501 - markup is no Python
"""The template of the report page, its style and its script.

They are Python since Flower bundles no other text with an app: of .html, .css and .js nothing arrives where a run is
served. Everything in double braces is escaped by jinja2; style and script stand in the page as they are, and a browser
runs no other (their hashes are in the page's content security policy).
"""

from __future__ import annotations

_TOP = r"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="riskband {{ version }}">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src '{{ style_hash }}'; script-src '{{ script_hash }}'; base-uri 'none'; form-action 'none'">
<meta name="color-scheme" content="light dark">
{% if refresh %}<meta http-equiv="refresh" content="{{ refresh }}">{% endif %}
<title>{{ view.title }} – {{ view.kind }}</title>
<style>{{ style|safe }}</style>
</head>
<body>
{% macro chart(figure, id) %}
<figure class="chart" id="{{ id }}" data-chart="{{ figure.data()|tojson|forceescape }}">
<figcaption><b>{{ figure.title }}.</b> {{ figure.description }}</figcaption>
<svg viewBox="{{ figure.view_box }}" role="img" aria-label="{{ figure.title }}. {{ figure.description }}">
{% set f = figure.frame %}
<g class="grid">
{% for y, text in figure.y_ticks %}
<line x1="{{ f.left }}" x2="{{ f.right }}" y1="{{ '%.1f'|format(y) }}" y2="{{ '%.1f'|format(y) }}"/><text x="{{ f.left - 8 }}" y="{{ '%.1f'|format(y + 4) }}" text-anchor="end">{{ text }}</text>
{% endfor %}
{% for x, text in figure.x_ticks %}
<text x="{{ '%.1f'|format(x) }}" y="{{ f.bottom + 18 }}" text-anchor="middle">{{ text }}</text>
{% endfor %}
<line class="axis" x1="{{ f.left }}" x2="{{ f.right }}" y1="{{ f.bottom }}" y2="{{ f.bottom }}"/>
<text x="{{ (f.left + f.right) / 2 }}" y="{{ f.bottom + 38 }}" text-anchor="middle">{{ figure.x_label }}</text>
<text transform="translate(14 {{ (f.top + f.bottom) / 2 }}) rotate(-90)" text-anchor="middle">{{ figure.y_label }}</text>
</g>
{% for curve in figure.curves %}
<path class="{{ curve.kind }}{{ ' area' if curve.lower is not none }}" d="{{ figure.path(curve) }}"/>
{% for x, y in figure.dots(curve) %}
<circle class="{{ curve.kind }}" cx="{{ '%.1f'|format(x) }}" cy="{{ '%.1f'|format(y) }}" r="1.6"/>
{% endfor %}
{% endfor %}
</svg>
<ul class="legend">
{% for curve in figure.curves %}
<li><svg viewBox="0 0 28 12" width="28" height="12" aria-hidden="true"><path class="{{ curve.kind }}{{ ' area' if curve.lower is not none }}" d="{{ 'M1 1H27V11H1Z' if curve.lower is not none else 'M0 6H28' }}"/></svg> {{ curve.name }}</li>
{% endfor %}
</ul>
</figure>
{% endmacro %}
{# The caller writes one row, of what stands in it. #}
{% macro table(caption, names, rows) %}
<table>
<caption>{{ caption }}</caption>
<thead><tr>{% for name in names if name %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in rows %}{{ caller(*row) }}{% endfor %}</tbody>
</table>
{% endmacro %}
{% macro section(id, place, title) %}
<section id="{{ id }}" aria-labelledby="h{{ place }}">
<h2 id="h{{ place }}">{{ place }}. {{ title }}</h2>
{% endmacro %}
{% macro terms(items) %}{% if items %}<dl>{% for name, text in items.items() %}<div><dt>{{ name }}</dt><dd>{{ text }}</dd></div>{% endfor %}</dl>{% endif %}{% endmacro %}
{# Beside each cell stands the head of its column, which a phone shows in the place of columns. #}
{% macro cell(head, text, kind='') %}<td data-head="{{ head }}"{% if kind %} class="{{ kind }}"{% endif %}>{{ text }}</td>{% endmacro %}
"""

PAGE = (
    _TOP
    + r"""{% set measured_head = '' if view.is_public else 'Measured' %}
{% macro measured(text) %}{% if measured_head %}{{ cell(measured_head, text, 'number') }}{% endif %}{% endmacro %}
{% macro numbers(rows, caption) %}
{% set bound = 'Guaranteed' if rows|map(attribute='label')|unique|list == ['certificate'] else 'Bound' %}
{% call(quantity, at_most, known, kind, note) table(caption, ['What is bounded', bound, measured_head, 'It is'], rows) %}
<tr><th scope="row">{{ quantity }}{% if note %}<br><small>{{ note }}.</small>{% endif %}</th>{{ cell(bound, at_most, 'number') }}{{ measured(known) }}{{ cell('It is', label(kind)) }}</tr>
{% endcall %}
{% endmacro %}
{% macro asked(question, exact) %}{{ question }}{% if exact not in question %}<br><small>Exact words: {{ exact }}.</small>{% endif %}{% endmacro %}
{% macro label(text) %}<span class="label{{ ' estimate' if text == 'ESTIMATE' }}">{{ text }}</span>{% endmacro %}
<a class="skip" href="#answer">Skip to the answer</a>
<header>
<p class="kind">{{ view.kind }}{% if view.is_public %} · public version, without what each client measured{% endif %}</p>
<h1>{{ view.title }}</h1>
{{ terms(view.about) }}
{% if view.unsaid %}<p class="note">Not stated: {{ view.unsaid|join(', ') }}.</p>{% endif %}
</header>
<main>
{{ section('answer', 1, 'The answer') }}
<div class="light {{ view.light.colour }}" role="status">
<span class="sign" aria-hidden="true">{{ view.light.sign }}</span>
<div><p class="word">{{ view.light.word }}</p><p>{{ view.light.reason }}</p></div>
</div>
<p class="sentence">{{ view.sentence }} {{ label(view.label) }}</p>
{% if not view.is_public %}<p>{{ view.measured }}</p>{% endif %}
<p class="note">{{ view.together }}</p>
{% for line in view.beside %}<p class="note">Beside that, by itself: {{ line }}</p>{% endfor %}
<p>{{ view.number }}{% if view.has_measured %} A <i>measured risk</i> is that mean over a client’s own test examples; its true risk may be higher or lower.{% endif %}</p>
{% if view.gate %}
{% call(each, known) table('What was required.' ~ (' With probability at least ' ~ view.sure ~ ' no verdict is a wrong PASS or a wrong FAIL.' if view.light.word != 'ESTIMATE ONLY' else ''), ['Requirement', 'Verdict', measured_head, 'Why'], view.verdicts) %}
<tr><th scope="row"><code>{{ each.requirement }}</code></th><td><span class="verdict {{ each.verdict|lower|replace(' ', '-') }}">{{ {'PASS': '✔', 'FAIL': '✖'}.get(each.verdict, '▲') }} {{ each.verdict }}</span></td>{{ measured(known) }}<td>{{ each.statement.partition(': ')[2] }}</td></tr>
{% endcall %}
{% else %}
<p>No requirement was set, so this page has no verdict. State one before the next evaluation, for example <code>--require "{{ view.example }}"</code>.</p>
{% endif %}
</section>
{{ section('who', 2, 'Who was measured') }}
{{ terms(view.who) }}
<p><b>{{ view.who_made_it }}</b> {{ view.answered_by }}</p>
{% if view.clients %}
<details>
<summary>What each client measured{% if view.num_unlisted %} (the worst {{ view.clients|length }}; {{ view.num_unlisted }} more are in the certificates){% endif %}</summary>
{% set grouped = view.clients|selectattr('group')|list %}
{% call(name, group, numbers) table('Measured on each client’s own examples: not a bound, and not certified.', ['Client', 'Group' if grouped else ''] + view.clients[0].numbers|list, view.clients) %}
<tr><th scope="row">{{ name }}</th>{% if grouped %}{{ cell('Group', group) }}{% endif %}{% for head, text in numbers.items() %}{{ cell(head, text, 'number') }}{% endfor %}</tr>
{% endcall %}
</details>
{% elif view.is_public %}
<p>What each client measured is left out of this version.</p>
{% endif %}
</section>
{{ section('change', 3, 'What may change') }}
{% set shift = view.shifts|first %}
{% if view.shifts %}
{% if shift.kind == 'divergence' %}
<p>Tomorrow’s clients need not be like those measured: some kinds may become more frequent. The <i>budget</i> says how far ({{ view.shifts|map(attribute='unit')|join(', or ') }}). The table says what that means for a kind of client, and what is then the most that can happen. {{ label(shift.label) }}{% if view.shifts|length > 1 %} Equal budgets of two divergences are not the same shift.{% endif %}</p>
{% else %}
<p>Tomorrow’s clients may have other examples. The <i>budget</i> is the mean transport cost of that change ({{ shift.unit }}).{% if shift.unit.startswith('order 2') %} A cost of order 2 is a squared distance.{% endif %} {{ label(shift.label) }}</p>
<h3>Who attacks, and what is guaranteed</h3>
<p>{{ view.attack|join(' ') }}</p>
{% endif %}
<div class="slider" hidden>
{% if view.shifts|length > 1 %}
<label for="divergence">Divergence</label> <select id="divergence" autocomplete="off">{% for each in view.shifts %}<option>{{ each.unit }}</option>{% endfor %}</select><br>
{% endif %}
<label for="budget">Budget <output id="budget-value" for="budget"></output></label>
<input type="range" id="budget" min="0" max="{{ shift.steps|length - 1 }}" step="1" autocomplete="off">
<p id="budget-words" aria-live="polite"></p>
</div>
{% for shift in view.shifts %}
{% set nth = '' if loop.first else '-' ~ loop.index %}
<div class="shift" data-start="{{ shift.steps|length // 2 }}">
<table id="steps{{ nth }}" data-steps="{{ shift.steps|tojson|forceescape }}" data-kinds="{{ shift.kinds|tojson|forceescape }}" data-columns="{{ shift.columns|tojson|forceescape }}">
<caption>{{ 'What may happen within each budget' if shift.kind == 'divergence' else 'What may happen within each cost' }}{{ ' of the ' ~ shift.unit if view.shifts|length > 1 }}.</caption>
<thead><tr><th scope="col">Budget</th>{% for kind in shift.kinds %}<th scope="col">A kind of client that is {{ kind }} today may become</th>{% endfor %}{% for column in shift.columns %}<th scope="col">{{ column }}</th>{% endfor %}</tr></thead>
<tbody>
{% for step in shift.steps %}
<tr><th scope="row" data-head="Budget">{{ step.budget }}</th>{% for kind in step.kinds %}{{ cell('from ' ~ shift.kinds[loop.index0], kind, 'number') }}{% endfor %}{% for bound in step.bounds %}{{ cell(shift.columns[loop.index0], bound, 'number') }}{% endfor %}</tr>
{% endfor %}
</tbody>
{% if not view.is_public %}<tfoot><tr><th scope="row">Measured</th>{% for kind in shift.kinds %}<td class="number">–</td>{% endfor %}{% for text in shift.measured %}{{ cell(shift.columns[loop.index0], text, 'number') }}{% endfor %}</tr></tfoot>{% endif %}
</table>
{% if shift.chart %}{{ chart(shift.chart, 'shift-chart' ~ nth) }}{% endif %}
</div>
{% endfor %}
{% if not view.breaks %}
<h3>Where it breaks</h3>
<p>{{ 'Where the required limits break is not shown here.' if view.gate else 'If a limit was set, section 4 says how far it is kept.' if shift.kind == 'cost' else 'No limit was set, so there is no budget at which one is exceeded.' }} Read off the table what you could bear.</p>
{% endif %}
{% if shift.together %}<p class="note">{{ shift.together }}</p>{% endif %}
{% elif view.shifted %}
<p>Tomorrow’s clients need not be like those measured: some kinds may become more frequent. The <i>budget</i> says how far.</p>
{{ numbers(view.shifted, 'Clients unlike those measured.') }}
{% for line in view.of_networks %}<p class="note">{{ line }}.</p>{% endfor %}
{% elif not view.breaks %}
<p>Nothing here is certified of clients that differ from those measured: the bounds hold for clients like these.</p>
{% endif %}
{% if view.breaks %}
<h3>Where it breaks</h3>
{% for sentence in view.breaks %}<p>{{ sentence }}</p>{% endfor %}
{% endif %}
</section>
{{ section('suffers', 4, 'Who suffers') }}
{% if view.rows %}
{{ numbers(view.rows, 'The middle and the worst-off, among clients like those measured.') }}
{% endif %}
{% if view.groups %}
{% call(name, size, interval, known) table('Mean risk by group.', ['Group', 'Clients', 'Mean risk lies in', measured_head], view.groups) %}
<tr><th scope="row">{{ name }}</th>{{ cell('Clients', size, 'number') }}{{ cell('Mean risk lies in', interval, 'number') }}{{ measured(known) }}</tr>
{% endcall %}
{% endif %}
{% if view.others %}
{{ numbers(view.others, 'Other numbers of this evaluation.') }}
{% endif %}
{% for figure in view.charts %}
{{ chart(figure, 'chart-' ~ loop.index) }}
{% endfor %}
{% for line in view.harm %}<p>{{ line }}</p>{% endfor %}
{% if view.carriers %}<p>{{ view.carriers }}</p>{% endif %}
{% for line in view.notes %}<p>{{ line }}</p>{% endfor %}
{% if not (view.rows or view.groups or view.others or view.charts or view.notes) %}
<p>These certificates say nothing about the worst-off or about groups of clients.</p>
{% endif %}
</section>
{{ section('true', 5, 'What must be true') }}
<p>{{ view.premise }} Tick, and name who stands for it. <b>What you enter is stored nowhere</b>: print the page, or save it as PDF, to keep it.</p>
{% set known = view.questions|selectattr(2)|list %}
{% if known %}
{% call(question, exact, answer) table('Answered by the record of the run.', ['Question', 'Answer'], known) %}
<tr><th scope="row">{{ asked(question, exact) }}</th><td>{{ answer }}</td></tr>
{% endcall %}
{% endif %}
<form>
{% call table('Questions for whoever can answer them.', ['Yes', 'Question', 'Owner', 'Date'], [()]) %}
{% for question, exact, _ in view.questions|rejectattr(2) %}
{% set nth = loop.index %}
<tr><td><input type="checkbox" id="q{{ nth }}" autocomplete="off"></td><th scope="row"><label for="q{{ nth }}">{{ asked(question, exact) }}</label></th>{% for what in ('Owner', 'Date') %}<td data-head="{{ what }}"><input type="text" aria-label="{{ what }} of question {{ nth }}" autocomplete="off"></td>{% endfor %}</tr>
{% endfor %}
{% endcall %}
</form>
</section>
{{ section('limits', 6, 'What this does not say') }}
<ul>{% for limit in view.limits %}<li>{{ limit }}</li>{% endfor %}</ul>
</section>
{{ section('auditor', 7, 'For the auditor') }}
{% if view.is_public %}
<p><b>This version cannot be verified:</b> {{ withheld }}. Ask for the certificates. {{ still_public }}</p>
{% elif holds %}
<p>The page holds {{ 'its certificates' if holds == 'whole' else 'the certificates that it was made of, compressed' }}, with the answers of all clients. To compute them again, and to compare this text with what they say: <code>pip install "riskband[report]=={{ version.partition('+')[0] }}"</code> and <code>riskband verify report.html</code>.</p>
{% else %}
<p>The certificates are too large for this page. To compute them again: <code>riskband verify FILE.json</code> for each file it was made of.</p>
{% endif %}
{{ terms({'Made by': 'riskband ' ~ version}) }}
{{ terms(view.hashes) }}
<details>
<summary>{{ 'All ' ~ view.certificates|length ~ ' certificates' if view.certificates|length > 1 else 'The certificate' }}</summary>
{% call(name, each) table('What each certificate says.', ['Name', 'Statement' ~ (', and the SHA-256 of its file' if digests else ''), 'It is', 'δ', 'Holds', 'Method'], view.certificates.items()) %}
<tr><th scope="row">{{ name }}</th><td>{{ each.statement }}{% if digests %}<code class="hash">{{ digests.get(name, '–') }}</code>{% endif %}</td>{{ cell('It is', label('ESTIMATE' if each.validity == 'estimate' else each.validity)) }}{{ cell('δ', view.deltas[name]) }}{{ cell('Holds', view.holds[name]) }}{{ cell('Method', each.method) }}</tr>
{% endcall %}
</details>
</section>
</main>
{% if signed %}<footer>
<p class="signature">Name <span></span> Date <span></span> Signature <span></span></p>
<p class="note">What is signed is what this page holds, with the SHA-256 <code>{{ signed }}</code>. It stands on every printed page, and <code>riskband verify</code> prints it.</p>
</footer>{% endif %}
<script type="application/json" id="certificates">{{ stored }}</script>
<script>{{ script|safe }}</script>
</body>
</html>
"""
)

MONITOR_PAGE = (
    _TOP
    + r"""<header>
<p class="kind">{{ view.kind }}</p>
<h1>{{ view.title }}</h1>
{{ terms(view.about) }}
</header>
<main>
{{ section('answer', 1, 'Is it still what was certified?') }}
<div class="light {{ view.light.colour }}" role="status">
<span class="sign" aria-hidden="true">{{ view.light.sign }}</span>
<div><p class="word">{{ view.light.word }}</p><p>{{ view.light.reason }}</p></div>
</div>
{{ chart(view.evidence, 'evidence') }}
{% call(name, said, peak) table('What is monitored: together it makes the evidence above.', ['Certificate', 'What it says', 'Its largest e-value'], view.claims) %}
<tr><th scope="row">{{ name }}</th>{{ cell('What it says', said) }}{{ cell('Its largest e-value', peak, 'number') }}</tr>
{% endcall %}
{% for name, why in view.left_out %}
<p class="note">Not monitored: {{ name }}, since {{ why }}.</p>
{% endfor %}
</section>
{{ section('today', 2, 'Today') }}
{% call(quantity, bound) table(view.sure, ['What is bounded', 'Today'], view.today) %}
<tr><th scope="row">{{ quantity }}</th>{{ cell('Today', bound, 'number') }}</tr>
{% endcall %}
<p class="note">{{ view.note }}</p>
{% for figure in view.charts %}
{{ chart(figure, 'chart-' ~ loop.index) }}
{% endfor %}
</section>
{{ section('true', 3, 'What must be true') }}
<ul>{% for line in view.assumptions %}<li>{{ line }}</li>{% endfor %}</ul>
</section>
</main>
<script>{{ script|safe }}</script>
</body>
</html>
"""
)

STYLE = r"""
:root { color-scheme: light dark; --back: #fff; --text: #1b1f24; --soft: #5b6470; --line: #d5dae1; --card: #f5f7f9; --bound: #0067a6; --worst-0: #b3450b; --worst-1: #7a3fa0; --worst-2: #00745a; --worst-3: #7a5c00; --green: #00644a; --amber: #7a4d00; --red: #a01c2c; --grey: #4a5361; --wash: 8%; }
@media screen and (prefers-color-scheme: dark) { :root { --back: #14181d; --text: #e6e9ed; --soft: #a5aeba; --line: #39414c; --card: #1d232a; --bound: #62b5ee; --worst-0: #f79a5e; --worst-1: #cf9df0; --worst-2: #4fd0ac; --worst-3: #e3c25a; --green: #52d1a5; --amber: #f0b75a; --red: #ff8f96; --grey: #b4bdc9; --wash: 16%; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 1.5rem 1.25rem 4rem; background: var(--back); color: var(--text); font: 1rem/1.55 system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
h1 { margin: 0; font-size: 1.9rem; line-height: 1.2; overflow-wrap: anywhere; }
h2 { margin: 2.6rem 0 .8rem; padding-top: .9rem; border-top: 1px solid var(--line); font-size: 1.3rem; }
h3 { margin: 1.4rem 0 .4rem; font-size: 1.05rem; }
p { margin: .6rem 0; max-width: 46rem; }
.kind { margin: 0 0 .2rem; color: var(--soft); font-size: .9rem; }
.skip { position: absolute; left: -99rem; }
.skip:focus { position: static; }
.light { --colour: var(--grey); display: flex; gap: 1.1rem; align-items: center; padding: 1rem 1.2rem; border: 2px solid var(--colour); border-left-width: 12px; border-radius: 8px; background: color-mix(in srgb, var(--colour) var(--wash), transparent); }
.light.green { --colour: var(--green); } .light.amber { --colour: var(--amber); } .light.red { --colour: var(--red); }
.light p { margin: 0; }
.sign { flex: none; width: 3.2rem; height: 3.2rem; border-radius: 50%; background: var(--colour); color: var(--back); font-size: 1.7rem; line-height: 3.2rem; text-align: center; }
.light.amber .sign { border-radius: 6px; } .light.red .sign { clip-path: polygon(30% 0, 70% 0, 100% 30%, 100% 70%, 70% 100%, 30% 100%, 0 70%, 0 30%); }
.word { color: var(--colour); font-size: 1.35rem; font-weight: 700; letter-spacing: .02em; }
.sentence { margin: 1.1rem 0 .6rem; font-size: 1.2rem; }
.label { display: inline-block; padding: 0 .5em; border: 1px solid var(--bound); border-radius: 99px; color: var(--bound); font-size: .78rem; line-height: 1.5; vertical-align: .1em; white-space: nowrap; }
.label.estimate { border-color: var(--red); color: var(--red); font-weight: 700; }
.verdict { font-weight: 700; white-space: nowrap; } .verdict.pass { color: var(--green); } .verdict.fail { color: var(--red); } .verdict.not-decided { color: var(--amber); }
.note, small { color: var(--soft); font-size: .88rem; }
dl { margin: .6rem 0; } dl + dl { margin-top: -.6rem; } dl div { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: .25rem 0; border-bottom: 1px solid var(--line); }
dt { flex: 0 0 17rem; color: var(--soft); } dd { flex: 1 1 18rem; margin: 0; overflow-wrap: anywhere; }
table { width: 100%; margin: 1rem 0; border-collapse: collapse; font-size: .93rem; }
caption { padding-bottom: .4rem; color: var(--soft); text-align: left; }
th, td { padding: .42rem .6rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; overflow-wrap: break-word; } tbody th { overflow-wrap: anywhere; min-width: 6rem; } #auditor tbody th { min-width: 9rem; }
thead th { border-bottom: 2px solid var(--line); font-size: .85rem; vertical-align: bottom; } thead th:first-child { white-space: nowrap; } tfoot { border-top: 2px solid var(--line); } tfoot th { font-weight: 400; }
tbody th { font-weight: 400; }
tbody th code, .number { white-space: nowrap; } .number { font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.now > * { background: color-mix(in srgb, var(--bound) var(--wash), transparent); }
details { margin: 1rem 0; } summary { padding: .4rem 0; color: var(--bound); cursor: pointer; }
code { font: .9em ui-monospace, Consolas, Menlo, monospace; overflow-wrap: anywhere; } .hash { display: block; margin-top: .2rem; color: var(--soft); font-size: .68rem; }
.slider { margin: 1rem 0; padding: .9rem 1.1rem; border-radius: 8px; background: var(--card); }
.slider label { font-weight: 700; } .slider select { margin-bottom: .4rem; padding: .25rem; border: 1px solid var(--soft); border-radius: 4px; background: var(--back); color: var(--text); font: inherit; } .slider input { display: block; width: 100%; margin: .5rem 0; accent-color: var(--bound); } .slider p { margin: 0; min-height: 3.2rem; }
.chart { position: relative; margin: 1.4rem 0; } .chart > svg { display: block; width: 100%; height: auto; } figcaption { max-width: 46rem; margin-bottom: .5rem; font-size: .93rem; }
.chart > svg:focus-visible, input:focus-visible, select:focus-visible, summary:focus-visible, a:focus-visible { outline: 3px solid var(--bound); outline-offset: 2px; }
svg text { fill: var(--soft); font-size: 12px; } .grid line { stroke: var(--line); } .grid .axis, .cursor { stroke: var(--soft); } .cursor { stroke-dasharray: 3 3; }
path, circle { fill: none; stroke-width: 2.2; } path.area { stroke-width: 1.6; }
.bound { stroke: var(--bound); --fill: var(--bound); } .measured { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 2 3; }
.worst-0 { stroke: var(--worst-0); } .worst-1 { stroke: var(--worst-1); stroke-dasharray: 8 3; } .worst-2 { stroke: var(--worst-2); stroke-dasharray: 3 2; } .worst-3 { stroke: var(--worst-3); stroke-dasharray: 10 3 2 3; }
path.area { fill: color-mix(in srgb, var(--fill, var(--bound)) 22%, transparent); } circle { stroke-width: 1; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.4rem; margin: .2rem 0 0; padding: 0; list-style: none; font-size: .88rem; }
.readout { position: absolute; top: 3.2rem; right: 1rem; max-width: 20rem; padding: .4rem .7rem; border: 1px solid var(--line); border-radius: 6px; background: var(--back); font-size: .85rem; pointer-events: none; }
form td:first-child { width: 2.5rem; } form td:nth-child(3) { width: 12rem; } form td:nth-child(4) { width: 8rem; }
.signature { display: flex; gap: .6rem; align-items: end; max-width: none; margin-top: 3.5rem; break-inside: avoid; } .signature span { flex: 1; border-bottom: 1px solid var(--text); } footer { break-inside: avoid; }
input[type=text] { width: 100%; padding: .25rem; border: 1px solid var(--soft); border-radius: 4px; background: var(--back); color: var(--text); font: inherit; font-size: .88rem; } input[type=checkbox] { width: 1.2rem; height: 1.2rem; accent-color: var(--bound); }
@media screen { .shift.other { display: none; } }
@media screen and (max-width: 40rem) { table, caption, tbody, tfoot, tr, th, td { display: block; } thead { display: none; } tr { padding: .5rem 0; border-bottom: 1px solid var(--line); } tbody th, tfoot th, td { padding: .1rem 0; border: 0; } [data-head]::before { content: attr(data-head) ": "; color: var(--soft); } tbody th:first-child, tfoot th { font-weight: 600; } th small { font-weight: 400; } tfoot td:not([data-head]) { display: none; } td.number { white-space: normal; } svg text { font-size: 18px; } svg text[transform] { display: none; } .chart > svg { overflow: visible; } dt { flex-basis: 100%; } form td:nth-child(n) { width: auto; } .signature { flex-direction: column; align-items: stretch; } .signature span { min-height: 1.6rem; } }
@page { margin: 14mm 14mm 18mm; @bottom-left { content: "{sha256}"; font: 7pt ui-monospace, Consolas, Menlo, monospace; } @bottom-right { content: counter(page) " / " counter(pages); font: 8pt sans-serif; } }
@media print { details::details-content { content-visibility: visible; } h2 { margin-top: 1.4rem; } details td, details th { padding-block: .1rem; } summary { list-style: none; color: var(--text); } input[type=text] { border-width: 0 0 1px; } :root { color-scheme: light; --text: #000; --soft: #444; --line: #bbb; --card: #fff; } html { font-size: 10pt; } body { max-width: none; padding: 0; line-height: 1.4; -webkit-print-color-adjust: exact; print-color-adjust: exact; } .slider, .skip, .readout, .cursor { display: none; } h2, h3, figcaption, caption { break-after: avoid; } tr, figure, .light, section > table, .shift > table { break-inside: avoid; } }
"""

SCRIPT = r"""
"use strict";
(() => {
  const shifts = [...document.querySelectorAll(".shift")], slider = document.getElementById("budget");
  if (slider) {
    const choice = document.getElementById("divergence"), words = document.getElementById("budget-words");
    const first = (text) => text.charAt(0).toLowerCase() + text.slice(1);
    let shift, steps, today, columns;
    const show = () => {
      const [budget, kinds, bounds] = steps[slider.value];
      document.getElementById("budget-value").textContent = budget;
      slider.setAttribute("aria-valuetext", "budget " + budget);
      const kind = kinds.length ? `A kind of client that is ${today[1]} today may become ${kinds[1]}, one that is ${today[2]} may become ${kinds[2]}. ` : "";
      const said = columns.map((column, i) => `the ${first(column)} is ${bounds[i] === "not bounded" ? "not bounded" : "at most " + bounds[i]}`).join("; ");
      words.textContent = kind + said.charAt(0).toUpperCase() + said.slice(1) + ".";
      for (const row of shift.querySelector("tbody").rows) row.classList.toggle("now", row.cells[0].textContent === budget);
      const chart = shift.querySelector(".chart");
      if (chart && chart.mark) chart.mark(Number(slider.value));
    };
    const choose = () => {
      shift = shifts[choice ? choice.selectedIndex : 0];
      for (const each of shifts) each.classList.toggle("other", each !== shift);
      [steps, today, columns] = ["steps", "kinds", "columns"].map((name) => JSON.parse(shift.querySelector("table").dataset[name]));
      slider.max = steps.length - 1;
      slider.value = shift.dataset.start;
      show();
    };
    slider.addEventListener("input", show);
    if (choice) choice.addEventListener("change", choose);
    document.querySelector(".slider").hidden = !choice && !shifts[0].querySelector(".chart");
    window.addEventListener("load", choose);
  }
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const { x, rows, x_label, steps, frame } = JSON.parse(figure.dataset.chart);
    const svg = figure.querySelector("svg"), last = x.length - 1;
    const cursor = document.createElementNS("http://www.w3.org/2000/svg", "line");
    const put = (parts) => { for (const [name, value] of Object.entries(parts)) cursor.setAttribute(name, value); };
    put({ class: "cursor", y1: frame.top, y2: frame.bottom });
    const readout = document.createElement("div");
    readout.className = "readout";
    readout.setAttribute("aria-live", "polite");
    readout.hidden = true;
    figure.append(readout);
    svg.setAttribute("tabindex", "0");
    let at = 0;
    figure.mark = (index) => {
      at = Math.min(Math.max(index, 0), last);
      const place = frame.left + ((x[at] - x[0]) / (x[last] - x[0] || 1)) * (frame.right - frame.left);
      put({ x1: place, x2: place });
      if (!cursor.parentNode) svg.append(cursor);
    };
    const read = (index) => {
      figure.mark(index);
      readout.textContent = `${x_label}: ${x[at]}. ${rows[at].join(". ")}.`;
      readout.hidden = false;
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect(), wide = svg.viewBox.baseVal.width;
      const inside = ((event.clientX - box.left) / box.width) * wide;
      const value = x[0] + ((inside - frame.left) / (frame.right - frame.left)) * (x[last] - x[0]);
      const after = x.findIndex((each) => each > value);
      const before = after < 0 ? last : Math.max(after - 1, 0), next = after < 0 ? last : after;
      read(steps === "after" ? before : steps === "before" ? next : value - x[before] < x[next] - value ? before : next);
    });
    for (const end of ["pointerleave", "blur"]) svg.addEventListener(end, () => { readout.hidden = true; });
    svg.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (move) { event.preventDefault(); read(at + move); }
    });
  }
})();
"""
