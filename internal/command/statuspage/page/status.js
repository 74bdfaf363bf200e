"use strict";
// Polls api/status once a second and shows it. Text goes in by textContent only, so nothing that is shown can be markup.
(() => {
  const el = (id) => document.getElementById(id);
  const set = (id, text) => { el(id).textContent = text; };
  const number = (n) => n.toLocaleString("en");
  // A value and its unit stay on one line.
  const bytes = (n) => {
    if (n === null || n === undefined) return "–";
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let i = 0;
    while (Math.abs(n) >= 1024 && i < units.length - 1) { n /= 1024; i++; }
    return `${n < 99.95 ? +n.toFixed(1) : Math.round(n)}\u00a0${units[i]}`;
  };
  const short = (x) => `${x < 9.95 ? +x.toFixed(1) : Math.round(x)}`;
  const seconds = (s) => {
    if (s === null || s === undefined) return "–";
    if (s === 0) return "0\u00a0s";
    const [unit, size] = [["µs", 1e-6, 0.001], ["ms", 0.001, 1], ["s", 1, 120], ["min", 60, 7200], ["h", 3600, 172800], ["d", 86400, Infinity]].find((u) => s < u[2]);
    return `${short(s / size)}\u00a0${unit}`;
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

  const clock = (t) => new Date(t * 1000).toTimeString().slice(0, 8);
  const time = (t) => (new Date(t * 1000).toDateString() === new Date().toDateString() ? "" : `${new Date(t * 1000).toLocaleDateString("sv")} `) + clock(t);

  // copyable is a code block, below what the command gives up. It has a button if the command gives up nothing. No word of it breaks where it fits into a line.
  // The clipboard exists only on https and localhost; elsewhere the text is selected.
  const copyable = (text, givesUp) => {
    const box = node("div", "", "copy"), pre = node("pre", "");
    pre.append(...text.split(/(\s+)/).map((word) => (word.trim() ? node("span", word) : word)));
    if (givesUp) {
      box.append(node("strong", `Gives up ${givesUp}.`), pre);
      return box;
    }
    const button = node("button", "Copy");
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
    for (const c of (commands || []).filter((c) => hint.includes(c.command)).sort((a, b) => hint.indexOf(a.command) - hint.indexOf(b.command))) {
      const i = hint.indexOf(c.command, at);
      if (i < 0) continue;
      words(hint.slice(at, i));
      parts.push(copyable(c.command, c.gives_up));
      at = i + c.command.length;
    }
    words(hint.slice(at));
    return parts;
  };

  // repair is what to do about a bad event: first what repairs, then what passes over the event.
  const repair = (bad) => [node("p", bad.repair),
    ...(bad.commands || []).flatMap((c) => [node("p", "If no repair is possible, run this command, and then start walpost again:"), copyable(c.command, c.gives_up)])];

  // While walpost is in one of these states, the slot stands still, and holds all WAL that the server writes.
  const still = ["halted", "stopped", "hung", "stalled", "no-checkpoint", "connecting"];
  const limitless = (slot) => slot.known && slot.exists && slot.limit === "" && slot.max_slot_wal_keep_bytes === null;
  // leftFor is in how many seconds the slot's limit is used up, null if that is not in sight. The forecast looks back for
  // longer than the rate. While the slot stands still, the sooner of the two counts.
  const leftFor = (s) => {
    const slot = s.slot, rate = slot.wal_write_bytes_per_second;
    if (!still.includes(s.state) || slot.left_bytes === null || !(rate > 0)) return slot.exhaustion_seconds;
    return Math.min(slot.exhaustion_seconds ?? Infinity, Math.max(slot.left_bytes, 0) / rate);
  };
  // urgency says how long a person may take.
  const urgency = (s) => {
    const slot = s.slot;
    if (s.poll) return "";
    if (!still.includes(s.state) && s.state !== "slot-at-risk") return "";
    if (!slot.known) return `unknown, because walpost cannot look at the slot${slot.error ? `: ${slot.error}` : "."}`;
    if (!slot.exists || slot.limit === "lost") return "stop whatever deletes rows of the outbox table, because walpost recover reads them.";
    const rate = Math.round(slot.wal_write_bytes_per_second), left = leftFor(s);
    const growth = `The slot holds ${bytes(slot.retained_bytes)} of WAL${rate > 0 ? ` and grows by ${bytes(rate)}/s` : ""}`;
    if (limitless(slot)) return `until the disk of the database is full. ${growth}, without a limit (max_slot_wal_keep_size is -1). Watch that disk.`;
    if (slot.left_bytes === null) return `${growth}.`;
    return `${left === 0 ? "none" : left === null || left > 30 * 86400 ? "no end in sight at this rate" : `about ${seconds(left)} at this rate`}. ${growth}. ${slot.left_bytes <= 0 ? "At its next checkpoint" : `After ${bytes(slot.left_bytes)} more`} ` +
      (slot.limit === "monitor.wal_disk_size" ? "the disk is full of WAL (monitor.wal_disk_size)." : "Postgres removes WAL that walpost has not read, and events are missing then (max_slot_wal_keep_size).");
  };

  // The states in plain words: the badge, its colour, the headline, and what waits for what.
  const held = (s) => (s.slot.state === "critical" ? ` The slot is in danger: ${s.slot.findings.join("; ")}.` : "");
  const full = (s) => Math.max(s.in_flight.events / s.window.events, s.in_flight.bytes / s.window.bytes);
  const acked = (s) => (s.last_ack_seconds_ago === null ? "" : ` Kafka acknowledged the newest event ${ago(s.last_ack_seconds_ago)}.`);
  const states = {
    "halted": ["Halted", "critical", (s) => {
      if (!s.halt) return `${s.slot.limit === "lost" ? "The slot is lost." : "The slot or the source has a fault."} A person must act. walpost delivers nothing until then.`;
      return `${s.halt.topic ? `Kafka refuses an event for topic ${s.halt.topic}.` : "An event cannot be routed."} A person must act.`;
    }, (s) => `${s.slot.limit === "lost" ? "walpost has read no events" : "Events have waited in Postgres"} since ${time(s.now_seconds - s.since_seconds)}.${acked(s)}${s.halt && s.halt.waiting.length ? ` Earlier events that still wait: ${s.halt.waiting.map((w) => `${plural(w.events, "event")} for topic ${w.topic}${w.closed ? " at the next start" : w.why ? ` (${w.why})` : ""}`).join(", ")}.` : ""}`],
    "stopped": ["Stopped", "critical", () => "walpost has ended."],
    "hung": ["Hung", "critical", () => "walpost makes no progress. This is a defect: keep its log, and restart it."],
    "stalled": ["Waiting for Kafka", "warning", () => "Kafka does not acknowledge events. Repair Kafka: walpost continues by itself.",
      (s) => `${s.in_flight.events === 1 ? "1 event waits" : `${number(s.in_flight.events)} events wait`} in walpost, the oldest for ${seconds(s.in_flight.oldest_seconds)}.${full(s) >= 1 ? " More wait in Postgres, because the window is full." : ""}${acked(s)}${s.slot.state === "critical" ? "" : " Nothing is lost: walpost delivers them in order."}${held(s)}`],
    "no-checkpoint": ["No checkpoint", "warning", () => "walpost cannot read or write its checkpoint.",
      (s) => `Until it can, it confirms nothing to Postgres. Repair the checkpoint store: walpost continues by itself.${held(s)}`],
    "connecting": ["Waiting for Postgres", "warning", () => "walpost has no connection to the database.",
      (s) => `It tries again by itself. Until it is connected, it reads no events.${held(s)}`],
    "slot-at-risk": ["Slot at risk", "critical", () => "The slot is lost or soon will be. If it is lost, events are missing."],
    "standby": ["Standby", "", () => "Another process delivers the events. The reason below says what this process waits for before it takes over."],
    "copying": ["Copying rows", "warning", () => "walpost publishes rows of the table. The stream follows."],
    "starting": ["Starting", "", () => "walpost starts."],
    "draining": ["Stopping", "warning", () => "walpost reads no more events, and waits for acknowledgements."],
    "streaming": ["Streaming", "ok", (s) => (s.last_ack_seconds_ago === null ? "Ready. There has been no event since the start." : `Events flow. Kafka acknowledged the newest one ${ago(s.last_ack_seconds_ago)}.`)],
  };

  function now(s) {
    let [text, kind, means, waits] = states[s.state] || [s.state, "warning", () => ""];
    const lacks = s.undelivered && kind === "ok";
    if (lacks) [text, kind, means] = ["Not all events are delivered", "warning", () => `${s.undelivered}. The other events flow.${acked(s)}`];
    else if (s.undelivered) waits = ((before) => (s) => `${before ? `${before(s)} ` : ""}${s.undelivered}.`)(waits);
    badge("state", text, kind);
    el("now").className = kind;
    document.title = `${s.ready && !s.undelivered ? "" : "! "}${text} – ${s.name}`;
    set("headline", means(s));
    const bad = s.halt, error = s.errors.find((e) => s.reason.includes(e.text));
    el("event").hidden = !bad;
    set("event-id", bad ? bad.event_id || "without an id" : "");
    set("event-place", bad ? `${bad.table ? `of ${bad.table}, row ${bad.row} of ` : ""}${bad.commit_lsn === "0/0" ? "the table" : `transaction ${bad.commit_lsn}`}` : "");
    show("reason", bad ? bad.error : s.reason);
    show("waits", waits ? waits(s) : "");
    const list = s.dead_list_command;
    const [hint, commands] = error ? [error.hint, error.commands] : lacks ? [`To list them, run ${list}`, [{ command: list }]] : ["", []];
    fill("remedy", [bad, hint, commands], () => (bad ? repair(bad) : remedy(hint, commands)));
    show("left", urgency(s));
    el("left-line").hidden = el("left").hidden;
    const gone = s.slot.limit === "lost" || s.slot.known && !s.slot.exists;
    set("left-label", gone ? "First:" : "Time left:");
    el(gone ? "reason" : "waits").after(el("left-line"));
    el("runbook-line").hidden = !s.runbook;
    if (s.runbook) el("runbook").href = s.runbook;
    return error;
  }

  // A chart is a line of the last minutes. Its scale is for most of the values, so one spike does not flatten the rest.
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const decades = (y) => {
    const all = [];
    for (let e = Math.round(Math.log10(y.min)); e <= Math.round(Math.log10(y.max)); e++) all.push(...[1, 2, 5].slice(0, y.max / y.min > 15 ? 1 : 3).map((n) => n * 10 ** e));
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
    c.draw = (points, end, rows) => {
      const all = rows[0].filter((v) => v !== null).sort((a, b) => a - b);
      const max = all.length ? all[all.length - 1] : null, most = all.length ? all[Math.floor((all.length - 1) * 0.95)] : 0;
      const cut = !log && most > 0 && max > 3 * most;
      c.from = Math.max(end - 300, Math.min(points.length ? points[0].at : end, end - 60));
      c.end = end;
      c.top = (cut ? most * 1.5 : max * 1.05) || 1;
      const span = seconds(Math.round((end - c.from) / 60) * 60);
      c.text = max === null ? `No value in the last ${span}` : `Last ${span}, maximum ${format(max)}${cut ? " (above the scale)" : ""}${log ? ", log scale" : ""}`;
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
            { ...axis, size: 22, values: (_, ticks) => ticks.map((t) => (c.end - c.from > 150 ? clock(t).slice(0, 5) : clock(t))), incrs: [15, 30, 60, 120], space: 64 },
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
  chart("latency", ["p99", "p50"], seconds, true);
  chart("retained", [""], bytes);

  // past draws the charts. The value above a chart is the end of its line; that of the WAL is as new as the rest of the page.
  function past(points, s) {
    const row = (key) => points.map((p) => p[key]), draw = (name, ...rows) => charts[name].draw(points, s.now_seconds, rows);
    draw("rate", row("events_per_second"));
    draw("latency", row("p99_seconds"), row("p50_seconds"));
    const newest = points[points.length - 1];
    points = [...points, { at: s.now_seconds, retained_bytes: s.slot.known && s.slot.exists ? s.slot.retained_bytes : null }];
    draw("retained", row("retained_bytes"));
    set("rate", newest ? `${number(Math.round(newest.events_per_second))}/s` : "–");
    set("p99", seconds(newest && newest.p99_seconds));
    set("p50", seconds(newest && newest.p50_seconds));
    set("retained", s.slot.limit === "lost" ? "lost" : bytes(points[points.length - 1].retained_bytes));
  }

  function details(s, shown) {
    set("name", s.name);
    set("version", s.version);
    set("acked", ago(s.last_ack_seconds_ago));
    set("events", number(s.events));
    set("transactions", number(s.transactions));
    set("latency", s.latency.count ? `${seconds(s.latency.p50_seconds)} / ${seconds(s.latency.p99_seconds)}` : "–");
    set("oldest", s.in_flight.oldest_seconds === null ? "none" : seconds(s.in_flight.oldest_seconds));
    const dead = s.open_dead_letters === null ? (s.open_dead_letters_error ? ["unknown how many are open"] : []) : s.open_dead_letters ? [`${number(s.open_dead_letters)} open`] : [];
    if (s.dead_letters !== null) dead.push(`${number(s.dead_letters)} since the start`);
    set("dead", dead.join(", ") || "none");
    show("dead-error", s.open_dead_letters_error ? `The dead letters cannot be counted: ${s.open_dead_letters_error}` : "");
    set("parked", s.parked === null ? "off" : s.parked.keys === 0 ? "none" : `${plural(s.parked.keys, "key")}, ${plural(s.parked.events, "event")}, the oldest for ${seconds(s.parked.oldest_seconds)}`);
    set("full", seconds(s.window.full_seconds));
    el("window").value = full(s);
    set("window-text", `${number(s.in_flight.events)} of ${plural(s.window.events, "event")}, ${bytes(s.in_flight.bytes)} of ${bytes(s.window.bytes)} in flight`);

    const slot = s.slot;
    const limited = slot.known && slot.left_bytes !== null && slot.retained_bytes !== null;
    const used = limited ? slot.retained_bytes / Math.max(slot.retained_bytes + Math.max(slot.left_bytes, 0), 1) : 0;
    set("slot-name", slot.name);
    if (slot.state === "ok" && !limited) badge("slot-state", "no limit", "warning");
    else if (slot.state === "ok" && used >= 0.5) badge("slot-state", "half of its limit is used", "warning");
    else badge("slot-state", slot.state === "unknown" ? "cannot tell" : slot.state === "ok" ? "far from its limit" : slot.state, slot.state);
    fill("slot-findings", slot.findings, () => slot.findings.map((text) => node("li", text)));
    el("budget-line").hidden = !limited;
    el("budget").value = used;
    set("budget-text", `${(used * 100).toFixed(used < 0.1 ? 1 : 0)} % of ${bytes(slot.retained_bytes + Math.max(slot.left_bytes, 0))}`);
    el("no-limit").hidden = !limitless(slot);
    set("unconfirmed", bytes(slot.unconfirmed_bytes));
    set("safe-label", slot.limit === "monitor.wal_disk_size" ? "Left on the disk for WAL" : "Left before the slot is lost");
    set("safe-wal", slot.known ? (slot.left_bytes !== null ? bytes(slot.left_bytes) : slot.limit === "lost" ? "lost" : "no limit") : "–");
    const left = leftFor(s);
    set("exhaustion", !slot.known ? "–" : left === null ? (limited ? "not in sight" : "when the disk is full") : slot.limit === "lost" ? "lost" : left === 0 ? "now" : seconds(left));
    set("wal-rate", slot.wal_write_bytes_per_second === null ? "–" : `${bytes(Math.round(slot.wal_write_bytes_per_second))}/s`);
    const idle = slot.inactive_seconds === null ? "" : ` for ${slot.inactive_at_least ? "at least " : ""}${seconds(slot.inactive_seconds)}`;
    set("wal-status", slot.known ? `${slot.wal_status || "none"}${slot.invalidation_reason && slot.invalidation_reason !== slot.wal_status ? ` (${slot.invalidation_reason})` : ""}, ${slot.active ? "active" : "inactive"}${idle}` : "–");
    fill("blocker-how", slot.blocker_end, () => (slot.blocker_end ? [node("p", "To end what holds WAL back:", "note"), copyable(slot.blocker_end, slot.blocker_detail.kind === "slot" ? "that slot: its reader loses events" : "that transaction: it is rolled back")] : []));
    show("hidden-note", slot.hidden ? `Note: ${slot.hidden}` : "");
    set("blocker", slot.blocker || "none");
    const breaker = s.breaker;
    set("breaker", breaker === null ? "off" : breaker.state === "armed" ? `armed: ${breaker.action}` : `${breaker.state} ${ago(breaker.since_seconds)}: ${breaker.reason}`);
    set("checked", slot.checked_seconds_ago === null ? "not yet" : ago(slot.checked_seconds_ago));

    const polled = s.poll;
    for (const id of ["slot-section", "retained-figure"]) el(id).hidden = !!polled;
    el("poll-section").hidden = !polled;
    if (polled) {
      set("poll-table", polled.table);
      set("poll-pending", polled.pending_rows === null ? "–" : `${polled.more_pending_rows ? "more than " : ""}${number(polled.pending_rows)}`);
      set("poll-oldest", polled.pending_rows === 0 ? "none" : polled.oldest_pending_seconds === null ? "–" : ago(polled.oldest_pending_seconds));
      set("poll-blocker", polled.pending_rows === null ? "–" : polled.blocker || "nothing");
      const claims = polled.claims;
      el("poll-blocker-figure").hidden = !!claims;
      for (const id of ["poll-claimed-figure", "poll-waiting-figure"]) el(id).hidden = !claims;
      if (claims) {
        set("poll-claimed", `${number(claims.claimed_rows)} by ${number(claims.workers)} ${claims.workers === 1 ? "worker" : "workers"}`);
        set("poll-waiting", number(claims.waiting_rows));
      }
      const notes = claims ? [...claims.refused.map((r) => `Event ${r.id} was refused ${r.attempts} times: ${r.error}`), ...(claims.locked || []).map((r) => `The row of event ${r.id} is locked by ${r.by}`)] : [];
      fill("poll-refused", JSON.stringify(notes), () => notes.map((text) => node("p", text, "note")));
      set("poll-strategy", polled.strategy);
      set("poll-wake", `${polled.wake_up === "notify" ? "when a trigger notifies, and " : ""}every ${seconds(polled.interval_seconds)}`);
      set("poll-checked", polled.checked_seconds_ago === null ? "not yet" : ago(polled.checked_seconds_ago));
      fill("poll-how", polled.blocker_end, () => (polled.blocker_end ? [node("p", "To end the transaction that delays delivery:", "note"), copyable(polled.blocker_end, "that transaction: it is rolled back")] : []));
      show("poll-error", polled.error);
    }

    for (const key of ["received", "safe", "checkpoint", "confirmed"]) set(key, s.position[key]);
    set("database", s.source.database || "–");
    set("since", seconds(Math.floor(s.since_seconds)));
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

    const put = [
      ...(s.parked ? s.parked.oldest_keys : []).map((p) => ({ kind: "parked", at: time(s.now_seconds - p.oldest_seconds), token: p.token, commands: p.commands,
        text: `Key ${p.key} of ${p.table}: ${plural(p.events, "event")}, because the first one is ${p.reason}${p.attempts > 1 ? ` (${p.attempts} attempts)` : ""}.` })),
      ...s.newest_dead_letters.map((d) => ({ kind: "dead letter", at: time(s.now_seconds - d.seconds_ago), token: d.token, commands: d.commands,
        text: `Event ${d.event_id} of ${d.table}${d.topic ? ` for topic ${d.topic}` : ""} is ${d.reason}: ${d.error}` })),
    ];
    fill("bad", put, () => put.map((b) => {
      const li = node("li", ""), line = node("p", `${b.at} `);
      line.append(node("span", b.kind, "badge warning"));
      li.append(line, node("p", b.text), ...b.commands.map((c) => copyable(c)));
      return li;
    }));
    el("bad-section").hidden = put.length === 0;
    set("bad-list", s.dead_list_command);

    set("error-count", s.errors.length ? number(s.errors.reduce((sum, e) => sum + e.times, 0)) : "");
    const errors = s.errors.map((e) => ({
      ...e, top: shown === e, at: time(s.now_seconds - e.seconds_ago), seconds_ago: 0,
      over_seconds_ago: e.over_seconds_ago === null ? "" : `over since ${time(s.now_seconds - e.over_seconds_ago)}`,
    }));
    fill("errors", errors, () => errors.map((e) => {
      const li = node("li", ""), line = node("p", `${e.at}${e.times > 1 ? ` (${number(e.times)} times)` : ""} `);
      line.append(e.over_seconds_ago ? node("span", e.over_seconds_ago, "badge ok") : e.top ? node("span", "now", "badge critical") : "");
      li.append(line, node("p", e.top ? "See the top of the page." : e.text));
      if (e.hint && !e.top && !e.over_seconds_ago) li.append(...remedy(e.hint, e.commands));
      return li;
    }));
    el("no-errors").hidden = s.errors.length > 0;
  }

  async function get(path) {
    const response = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!response.ok) throw new Error(`status ${response.status}`);
    return response.json();
  }

  let turn = 0, points = [];
  async function poll() {
    try {
      if (turn++ % 2 === 0) points = await get("api/history");
      const s = await get("api/status");
      details(s, now(s));
      past(points, s);
      document.body.classList.remove("old");
    } catch (err) {
      document.body.classList.add("old");
      badge("state", "Disconnected", "critical");
      el("now").className = "critical";
      document.title = "! disconnected – walpost";
      set("headline", `walpost does not answer (${err.message}). Check whether its process runs, and read the end of its log. The values below are old.`);
      turn = 0;
    }
    setTimeout(poll, document.hidden ? 5000 : 1000);
  }
  poll();
})();
