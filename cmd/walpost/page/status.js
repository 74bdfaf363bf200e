"use strict";
// Polls api/status once a second and shows it. Text goes in by textContent only, so nothing that is shown can be markup.
(() => {
  const el = (id) => document.getElementById(id);
  const set = (id, text) => { el(id).textContent = text; };
  const number = (n) => n.toLocaleString("en");
  const bytes = (n) => {
    if (n === null || n === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return `${Number.isInteger(n) ? n : n.toFixed(1)} ${units[i]}`;
  };
  const short = (x) => `${x < 9.95 ? +x.toFixed(1) : Math.round(x)}`;
  const seconds = (s) => {
    if (s === null || s === undefined) return "–";
    if (s === 0) return "0 s";
    if (s < 0.001) return `${short(s * 1e6)} µs`;
    if (s < 1) return `${short(s * 1e3)} ms`;
    if (s < 120) return `${short(s)} s`;
    if (s < 7200) return `${short(s / 60)} min`;
    if (s < 172800) return `${short(s / 3600)} h`;
    return `${short(s / 86400)} d`;
  };
  const ago = (s) => (s === null ? "never" : `${seconds(Math.floor(s))} ago`);
  const plural = (n, what) => `${number(n)} ${what}${n === 1 ? "" : "s"}`;
  const badge = (id, text, kind) => { set(id, text); el(id).className = `badge ${kind}`; };
  const show = (id, text) => { el(id).hidden = !text; set(id, text || ""); };
  const node = (tag, text, kind) => {
    const n = document.createElement(tag);
    n.textContent = text;
    if (kind) n.className = kind;
    return n;
  };

  // fill replaces what an element has only if key has changed, so that a selection stays.
  const keys = {};
  const fill = (id, key, make) => {
    if (keys[id] === (key = JSON.stringify(key))) return;
    keys[id] = key;
    el(id).replaceChildren(...make());
    el(id).hidden = el(id).childNodes.length === 0;
  };

  // copyable is a code block with a button. The clipboard exists only on https and localhost; elsewhere the text is selected.
  const copyable = (text) => {
    const box = node("div", "", "copy"), pre = node("pre", text), button = node("button", "Copy");
    button.type = "button";
    button.addEventListener("click", () => {
      const done = () => { button.textContent = "Copied"; };
      const select = () => { getSelection().selectAllChildren(pre); if (document.execCommand("copy")) done(); };
      if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, select); else select();
    });
    box.append(pre, button);
    return box;
  };

  // remedy is a hint, with each of its commands as a code block.
  const remedy = (hint, commands) => {
    const parts = [], words = (text) => { if (text.replace(/^[\s.,;:]+/, "")) parts.push(node("p", text.replace(/^[\s.,;:]+/, "").trimEnd())); };
    let at = 0;
    for (const command of (commands || []).filter((c) => hint.includes(c)).sort((a, b) => hint.indexOf(a) - hint.indexOf(b))) {
      const i = hint.indexOf(command, at);
      if (i < 0) continue;
      words(hint.slice(at, i));
      parts.push(copyable(command));
      at = i + command.length;
    }
    words(hint.slice(at));
    return parts;
  };

  // The states in plain words: the badge, its colour, the headline, and what waits for what.
  const held = (s) => (s.slot.state === "critical" ? ` The slot is in danger: ${s.slot.findings.join("; ")}.` : s.slot.retained_bytes === null ? "" : ` Meanwhile the slot holds ${bytes(s.slot.retained_bytes)} of WAL in Postgres.`);
  const states = {
    "halted": ["Halted", "critical", (s) => {
      if (!s.halt) return `${s.slot.limit === "lost" ? "The slot is lost." : "The slot or the source has a fault."} A person must act. walpost delivers nothing until then.`;
      return `${s.halt.topic ? `Kafka refuses an event for topic ${s.halt.topic}.` : "An event cannot be routed."} A person must act.`;
    }, (s) => (s.halt && s.halt.waiting.length ? `From before this event: ${s.halt.waiting.map((w) => `${plural(w.events, "event")} for topic ${w.topic}${w.closed ? " at the next start" : w.why ? ` (${w.why})` : ""}`).join(", ")}.` : "")],
    "stopped": ["Stopped", "critical", () => "walpost has ended."],
    "hung": ["Hung", "critical", () => "walpost makes no progress. This is a defect: keep its log, and restart it."],
    "stalled": ["Waiting for Kafka", "warning", () => "Kafka does not acknowledge events.",
      (s) => `${s.in_flight.events === 1 ? "1 event waits" : `${number(s.in_flight.events)} events wait`} in walpost, the oldest for ${seconds(s.in_flight.oldest_seconds)}. ${s.slot.state === "critical" ? "" : "Nothing is lost. "}Repair Kafka, and walpost delivers them in order by itself.${held(s)}`],
    "no-checkpoint": ["No checkpoint", "warning", () => "walpost cannot read or write its checkpoint.",
      (s) => `It confirms nothing to Postgres until then. Repair the checkpoint store: walpost continues by itself.${held(s)}`],
    "connecting": ["Waiting for Postgres", "warning", () => "walpost has no connection to the database.",
      (s) => `It reads no events until then, and tries again by itself.${held(s)}`],
    "slot-at-risk": ["Slot at risk", "critical", () => "The slot is lost or soon will be. If it is lost, events are missing."],
    "standby": ["Standby", "", () => "Another process relays. This process takes over when the other one ends."],
    "copying": ["Copying rows", "warning", () => "walpost publishes the rows that the table had before. The stream follows."],
    "starting": ["Starting", "", () => "walpost starts."],
    "draining": ["Stopping", "warning", () => "walpost reads no more events, and waits for acknowledgements."],
    "streaming": ["Streaming", "ok", (s) => (s.last_ack_seconds_ago === null ? "Ready. There was no event since the start." : `Events flow. Kafka acknowledged the newest one ${ago(s.last_ack_seconds_ago)}.`)],
  };

  function now(s) {
    const [text, kind, means, waits] = states[s.state] || [s.state, "warning", () => ""];
    badge("state", text, kind);
    el("now").className = kind;
    document.title = `${s.ready ? "" : "! "}${text} – ${s.name}`;
    set("headline", means(s));
    const bad = s.halt, error = s.errors.find((e) => s.reason.includes(e.text));
    el("event").hidden = !bad;
    set("event-id", bad ? bad.event_id || "without an id" : "");
    set("event-place", bad ? `${bad.table ? `of ${bad.table}, row ${bad.row} of ` : ""}${bad.commit_lsn === "0/0" ? "the table" : `transaction ${bad.commit_lsn}`}` : "");
    show("reason", bad ? bad.error : s.reason);
    show("waits", waits ? waits(s) : "");
    const [hint, commands] = bad ? [bad.hint, bad.commands] : error ? [error.hint, error.commands] : ["", []];
    fill("remedy", [hint, commands], () => remedy(hint, commands));
    el("runbook-line").hidden = !s.runbook;
    if (s.runbook) el("runbook").href = s.runbook;
    return error;
  }

  // A chart is a line of the last minutes. Its scale is for most of the values, so one spike does not flatten the rest.
  const clock = (t) => new Date(t * 1000).toTimeString().slice(0, 8);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const decades = (y) => {
    const all = [];
    for (let e = Math.round(Math.log10(y.min)); e <= Math.round(Math.log10(y.max)); e++) all.push(...[1, 2, 5].slice(0, y.max / y.min > 150 ? 1 : 3).map((n) => n * 10 ** e));
    return all.filter((v) => v >= y.min * 0.99 && v <= y.max * 1.01);
  };
  // A value between two gaps gives no line, so it is a point.
  const alone = (u, line) => u.data[line].flatMap((v, i, all) => (v !== null && (all[i - 1] ?? null) === null && (all[i + 1] ?? null) === null ? [i] : []));
  const charts = {};
  function chart(name, lines, format, log) {
    const box = el(`chart-${name}`);
    const axis = { stroke: () => colour("--dim"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const c = charts[name] = { top: 1, max: null, text: "" };
    const said = () => {
      const u = c.plot, i = u && u.cursor.left >= 0 ? u.cursor.idx : null;
      set(`span-${name}`, i === null || i === undefined ? c.text : `${clock(u.data[0][i])}: ${lines.map((line, n) => (u.data[n + 1][i] === null ? "no value" : `${line} ${format(u.data[n + 1][i])}`.trim())).join(", ")}`);
    };
    c.draw = (points, rows) => {
      const end = points.length ? points[points.length - 1].at : Date.now() / 1000;
      const all = rows[0].filter((v) => v !== null).sort((a, b) => a - b);
      const max = all.length ? all[all.length - 1] : null, most = all.length ? all[Math.floor((all.length - 1) * 0.95)] : 0;
      const cut = !log && most > 0 && max > 3 * most;
      c.from = Math.max(end - 300, Math.min(points.length ? points[0].at : end, end - 60));
      c.end = end;
      c.top = (cut ? most * 1.5 : max * 1.05) || 1;
      c.text = max === null ? `No value in the last ${seconds(end - c.from)}` : `Last ${seconds(end - c.from)}, maximum ${format(max)}${cut ? " (above the scale)" : ""}${log ? ", log scale" : ""}`;
      box.setAttribute("aria-label", c.text);
      const data = [points.map((p) => p.at), ...rows];
      if (c.plot) c.plot.setData(data);
      else {
        c.plot = new uPlot({
          width: box.clientWidth, height: box.clientHeight, legend: { show: false }, padding: [8, 24, 0, 0],
          cursor: { y: false, drag: { x: false, y: false } },
          scales: {
            x: { range: () => [c.from, c.end] },
            y: log ? { distr: 3, range: (_, low, high) => [10 ** Math.floor(Math.log10(low || 0.001)), 10 ** Math.max(Math.ceil(Math.log10(high || 1)), Math.floor(Math.log10(low || 0.001)) + 1)] } : { range: () => [0, c.top] },
          },
          axes: [
            { ...axis, size: 22, values: (_, ticks) => ticks.map((t) => (c.end - c.from > 150 ? clock(t).slice(0, 5) : clock(t))), incrs: [15, 30, 60, 120], space: 48 },
            { ...axis, size: 62, space: 28, values: (_, ticks) => ticks.map((v) => (v === null ? "" : format(v))), ...(log ? { splits: () => decades(c.plot.scales.y), filter: (_, all) => all } : {}), ...(name === "retained" ? { incrs: Array.from({ length: 50 }, (_, i) => 2 ** i) } : {}) },
          ],
          series: [{}, ...lines.map((_, n) => ({ stroke: () => colour(n ? "--dim" : "--link"), width: n ? 1 : 1.6, points: { size: 4, width: 0, fill: () => colour(n ? "--dim" : "--link"), filter: alone } }))],
          hooks: { setCursor: [said] },
        }, data, box);
        new ResizeObserver(() => c.plot.setSize({ width: box.clientWidth, height: box.clientHeight })).observe(box);
        matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => c.plot.redraw());
      }
      said();
    };
  }
  chart("rate", [""], (v) => `${v.toLocaleString("en", { notation: "compact" })}/s`);
  chart("latency", ["p99", "median"], seconds, true);
  chart("retained", [""], bytes);

  function past(points) {
    charts.rate.draw(points, [points.map((p) => p.events_per_second)]);
    charts.latency.draw(points, [points.map((p) => p.p99_seconds), points.map((p) => p.p50_seconds)]);
    charts.retained.draw(points, [points.map((p) => p.retained_bytes)]);
    const newest = points[points.length - 1];
    set("rate", newest ? `${number(Math.round(newest.events_per_second))}/s` : "–");
    set("latency-now", newest && newest.p99_seconds !== null ? seconds(newest.p99_seconds) : "–");
  }

  function details(s, shown) {
    set("name", s.name);
    set("version", s.version);
    set("acked", ago(s.last_ack_seconds_ago));
    set("events", number(s.events));
    set("transactions", number(s.transactions));
    set("latency", s.latency.count ? `${seconds(s.latency.p50_seconds)} / ${seconds(s.latency.p99_seconds)}` : "–");
    set("oldest", s.in_flight.oldest_seconds === null ? "none" : seconds(s.in_flight.oldest_seconds));
    set("dead", s.dead_letters === null ? "off: a bad event halts" : number(s.dead_letters));
    set("full", seconds(s.window.full_seconds));
    el("window").value = Math.max(s.in_flight.events / s.window.events, s.in_flight.bytes / s.window.bytes);
    set("window-text", `${number(s.in_flight.events)} of ${plural(s.window.events, "event")}, ${bytes(s.in_flight.bytes)} of ${bytes(s.window.bytes)} in flight`);

    const slot = s.slot;
    const limited = slot.known && slot.left_bytes !== null && slot.retained_bytes !== null;
    const used = limited ? slot.retained_bytes / Math.max(slot.retained_bytes + Math.max(slot.left_bytes, 0), 1) : 0;
    set("slot-name", slot.name);
    if (slot.state === "ok" && !limited) badge("slot-state", "no limit known", "warning");
    else if (slot.state === "ok" && used >= 0.5) badge("slot-state", "half of its limit is used", "warning");
    else badge("slot-state", slot.state === "unknown" ? "cannot tell" : slot.state === "ok" ? "far from its limit" : slot.state, slot.state);
    fill("slot-findings", slot.findings, () => slot.findings.map((text) => node("li", text)));
    el("budget-line").hidden = !limited;
    el("budget").value = used;
    set("budget-text", `${(used * 100).toFixed(used < 0.1 ? 1 : 0)} % of ${bytes(slot.retained_bytes + Math.max(slot.left_bytes, 0))}`);
    set("retained", bytes(slot.retained_bytes));
    set("unconfirmed", bytes(slot.unconfirmed_bytes));
    set("safe-label", slot.limit === "monitor.wal_disk_size" ? "Left on the disk for WAL" : "Left before the slot is lost");
    set("safe-wal", slot.known ? (slot.left_bytes !== null ? bytes(slot.left_bytes) : slot.limit === "lost" ? "lost" : "no limit known") : "–");
    set("exhaustion", slot.known ? (slot.exhaustion_seconds !== null ? (slot.exhaustion_seconds === 0 ? "now" : seconds(slot.exhaustion_seconds)) : limited ? "not in sight" : "no limit known") : "–");
    set("wal-rate", slot.wal_write_bytes_per_second === null ? "–" : `${bytes(Math.round(slot.wal_write_bytes_per_second))}/s`);
    const idle = slot.inactive_seconds === null ? "" : ` for ${slot.inactive_at_least ? "at least " : ""}${seconds(slot.inactive_seconds)}`;
    set("wal-status", slot.known ? `${slot.wal_status || "none"}${slot.invalidation_reason ? ` (${slot.invalidation_reason})` : ""}, ${slot.active ? "active" : "inactive"}${idle}` : "–");
    fill("blocker-how", slot.blocker_end, () => (slot.blocker_end ? [node("p", "To end what holds it back:", "note"), copyable(slot.blocker_end)] : []));
    show("hidden-note", slot.hidden ? `Not to be seen: ${slot.hidden}` : "");
    set("blocker", slot.blocker || "none");
    const breaker = s.breaker;
    set("breaker", breaker === null ? "off" : breaker.state === "armed" ? `armed: ${breaker.action}` : `${breaker.state} ${ago(breaker.since_seconds)}: ${breaker.reason}`);
    set("checked", slot.checked_seconds_ago === null ? "not yet" : ago(slot.checked_seconds_ago));

    for (const key of ["received", "safe", "checkpoint", "confirmed"]) set(key, s.position[key]);
    set("database", s.source.database || "–");
    set("since", seconds(s.since_seconds));
    set("sessions", Object.entries(s.sessions).map(([how, n]) => `${n} ${how}`).join(", ") || "none");
    set("epoch", s.epoch ? `${s.epoch}, ${s.source.timeline}` : "–");

    const topics = Object.entries({ ...Object.fromEntries(Object.keys(s.recent).map((t) => [t, 0])), ...s.topics }).sort((a, b) => b[1] - a[1]);
    const line = (kind, ...parts) => { const n = node("div", "", kind); n.append(...parts); return n; };
    el("topics").replaceChildren(...topics.map(([topic, count]) => {
      const li = node("li", "");
      li.append(line("topic", node("span", topic), node("b", number(count))), line("events", ...(s.recent[topic] || []).map((e) => {
        const id = node("code", e.id);
        id.title = e.id;
        return line("event", id, node("small", ago(e.seconds_ago)));
      })));
      return li;
    }));
    el("no-topics").hidden = topics.length > 0;

    set("error-count", s.errors.length ? number(s.errors.reduce((sum, e) => sum + e.times, 0)) : "");
    fill("errors", [s.errors, shown && shown.text], () => s.errors.map((e) => {
      const li = node("li", shown && e.text === shown.text ? "See the top of the page." : e.text);
      if (e.hint && !(shown && e.text === shown.text)) li.append(...remedy(e.hint, e.commands));
      li.append(node("br", ""), node("small", `${ago(e.seconds_ago)}${e.times > 1 ? `, ${number(e.times)} times` : ""}`));
      return li;
    }));
    el("no-errors").hidden = s.errors.length > 0;
  }

  async function get(path) {
    const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  }

  let turn = 0;
  async function poll() {
    try {
      const s = await get("api/status");
      details(s, now(s));
      if (turn++ % 2 === 0) past(await get("api/history"));
      document.body.classList.remove("old");
    } catch (err) {
      document.body.classList.add("old");
      badge("state", "Disconnected", "critical");
      el("now").className = "critical";
      document.title = "! disconnected – walpost";
      set("headline", `The relay does not answer (${err.message}). What is below is old.`);
      turn = 0;
    }
    setTimeout(poll, document.hidden ? 5000 : 1000);
  }
  poll();
})();
