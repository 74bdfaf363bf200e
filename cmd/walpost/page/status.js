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
    return `${i === 0 ? n : n.toFixed(1)} ${units[i]}`;
  };
  const seconds = (s) => {
    if (s === null || s === undefined) return "–";
    if (s === 0) return "0 s";
    if (s < 0.001) return `${(s * 1e6).toFixed(0)} µs`;
    if (s < 1) return `${(s * 1e3).toFixed(s < 0.01 ? 1 : 0)} ms`;
    if (s < 120) return `${s.toFixed(s < 10 ? 1 : 0)} s`;
    if (s < 7200) return `${(s / 60).toFixed(0)} min`;
    if (s < 172800) return `${(s / 3600).toFixed(1)} h`;
    return `${(s / 86400).toFixed(1)} d`;
  };
  const badge = (id, text, kind) => { set(id, text); el(id).className = `badge ${kind}`; };

  const list = (id, items) => {
    el(id).replaceChildren(...items);
    el(id).hidden = items.length === 0;
  };
  const node = (tag, text, kind) => {
    const n = document.createElement(tag);
    n.textContent = text;
    if (kind) n.className = kind;
    return n;
  };
  const ago = (s) => `${seconds(Math.floor(s))} ago`;

  // A spark is a line of the last minutes: its height is the largest value. Where there is no value there is a gap.
  const svg = "http://www.w3.org/2000/svg";
  function spark(id, values) {
    const width = 300, height = 40, top = Math.max(...values.filter((v) => v !== null), 0) || 1;
    let line = "", area = "", start = null;
    const x = (i) => (values.length > 1 ? (i * width) / (values.length - 1) : 0).toFixed(1);
    const y = (v) => (height - 2 - (v / top) * (height - 4)).toFixed(1);
    const close = (i) => { if (start !== null) area += `L${x(i)} ${height}L${x(start)} ${height}Z`; start = null; };
    values.forEach((v, i) => {
      if (v === null) { close(i - 1); return; }
      line += `${start === null ? "M" : "L"}${x(i)} ${y(v)}`;
      area += `${start === null ? "M" : "L"}${x(i)} ${y(v)}`;
      if (start === null) start = i;
    });
    close(values.length - 1);
    const path = (d, kind) => {
      const p = document.createElementNS(svg, "path");
      p.setAttribute("d", d);
      p.setAttribute("class", kind);
      return p;
    };
    el(id).setAttribute("viewBox", `0 0 ${width} ${height}`);
    el(id).setAttribute("preserveAspectRatio", "none");
    el(id).replaceChildren(path(area, "area"), path(line, "line"));
  }

  function past(points) {
    spark("spark-rate", points.map((p) => p.events_per_second));
    spark("spark-latency", points.map((p) => p.p99_seconds));
    spark("spark-retained", points.map((p) => p.retained_bytes));
    const last = points[points.length - 1];
    set("latency-now", last && last.p99_seconds !== null ? seconds(last.p99_seconds) : "–");
  }

  const rates = []; // the counters of the last seconds, for the rate

  function show(s) {
    set("name", s.name);
    set("version", s.version);
    document.title = `${s.ready ? "" : "! "}${s.name} – walpost`;
    const bad = s.state === "halted" || s.state === "stopped";
    badge("state", s.ready ? "ready" : s.state, s.ready ? "ok" : bad ? "critical" : "warning");
    el("reason").hidden = s.ready;
    el("reason").className = bad ? "reason critical" : "reason";
    set("reason", s.reason);
    const next = !s.ready && s.errors.length > 0 ? s.errors[0].hint : "";
    el("next").hidden = next === "";
    set("next", next === "" ? "" : `What to do: ${next}`);

    rates.push({ at: s.now_seconds, events: s.events, run: s.holder });
    while (rates.length > 1 && (s.now_seconds - rates[0].at > 10 || rates[0].run !== s.holder)) rates.shift();
    const before = rates[0];
    const passed = s.now_seconds - before.at;
    set("rate", passed > 0 ? number(Math.round((s.events - before.events) / passed)) : "–");
    set("events", number(s.events));
    set("latency", s.latency.count ? `${seconds(s.latency.p50_seconds)} / ${seconds(s.latency.p99_seconds)}` : "–");
    set("oldest", s.in_flight.oldest_seconds === null ? "none" : seconds(s.in_flight.oldest_seconds));
    set("inflight", `${number(s.in_flight.events)} events, ${bytes(s.in_flight.bytes)}`);
    set("dead", s.dead_letters === null ? "off: a bad event halts" : number(s.dead_letters));
    set("full", seconds(s.window.full_seconds));
    el("window").value = Math.max(s.in_flight.events / s.window.events, s.in_flight.bytes / s.window.bytes);

    const slot = s.slot;
    set("slot-name", slot.name);
    badge("slot-state", slot.state === "unknown" ? "cannot tell" : slot.state, slot.state);
    list("slot-findings", slot.findings.map((text) => node("li", text)));
    const limited = slot.known && slot.left_bytes !== null && slot.retained_bytes !== null;
    el("budget-line").hidden = !limited;
    if (limited) {
      const used = slot.retained_bytes / Math.max(slot.retained_bytes + Math.max(slot.left_bytes, 0), 1);
      el("budget").value = used;
      set("budget-text", `${(used * 100).toFixed(used < 0.1 ? 1 : 0)} %`);
    }
    set("retained", bytes(slot.retained_bytes));
    set("unconfirmed", bytes(slot.unconfirmed_bytes));
    set("safe-label", slot.limit === "monitor.wal_disk_size" ? "Left on the disk for WAL" : "Left before the slot is lost");
    set("safe-wal", slot.known ? (slot.left_bytes !== null ? bytes(slot.left_bytes) : slot.limit === "lost" ? "lost" : "no limit known") : "–");
    set("exhaustion", slot.known ? (slot.exhaustion_seconds === null ? "not in sight" : slot.exhaustion_seconds === 0 ? "now" : seconds(slot.exhaustion_seconds)) : "–");
    set("wal-rate", slot.wal_write_bytes_per_second === null ? "–" : `${bytes(Math.round(slot.wal_write_bytes_per_second))}/s`);
    const idle = slot.inactive_seconds === null ? "" : ` for ${slot.inactive_at_least ? "at least " : ""}${seconds(slot.inactive_seconds)}`;
    set("wal-status", slot.known ? `${slot.wal_status || "none"}${slot.invalidation_reason ? ` (${slot.invalidation_reason})` : ""}, ${slot.active ? "active" : "inactive"}${idle}` : "–");
    el("blocker-how").hidden = !slot.blocker_end;
    set("blocker-sql", slot.blocker_end);
    el("hidden-note").hidden = !slot.hidden;
    set("hidden-note", slot.hidden ? `Not to be seen: ${slot.hidden}` : "");
    set("blocker", slot.blocker || "nothing");
    const breaker = s.breaker;
    set("breaker", breaker === null ? "off" : breaker.state === "armed" ? `armed: ${breaker.action}` : `${breaker.state} ${ago(breaker.since_seconds)}: ${breaker.reason}`);
    set("checked", slot.checked_seconds_ago === null ? "not yet" : `${seconds(slot.checked_seconds_ago)} ago`);

    for (const key of ["received", "safe", "checkpoint", "confirmed"]) set(key, s.position[key]);

    const topics = Object.entries({ ...Object.fromEntries(Object.keys(s.recent).map((t) => [t, 0])), ...s.topics }).sort((a, b) => b[1] - a[1]);
    el("topics").replaceChildren(...topics.map(([topic, count]) => {
      const row = document.createElement("tr"), cell = node("td", "");
      cell.append(node("div", topic), ...(s.recent[topic] || []).map((e) => {
        const line = node("div", "", "event");
        line.append(node("code", e.id), node("small", ago(e.seconds_ago)));
        return line;
      }));
      row.append(cell, node("td", number(count)));
      return row;
    }));
    el("no-topics").hidden = topics.length > 0;

    set("database", s.source.database || "–");
    set("since", seconds(s.since_seconds));
    set("transactions", number(s.transactions));
    set("sessions", Object.entries(s.sessions).map(([how, n]) => `${n} ${how}`).join(", ") || "none");
    set("epoch", s.epoch ? `${s.epoch}, ${s.source.timeline}` : "–");
    list("errors", s.errors.map((e) => {
      const li = node("li", e.text);
      if (e.hint) li.append(node("p", `What to do: ${e.hint}`, "hint"));
      li.append(node("small", `${ago(e.seconds_ago)}${e.times > 1 ? `, ${number(e.times)} times in a row` : ""}`));
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
      show(await get("api/status"));
      if (turn++ % 2 === 0) past(await get("api/history"));
      document.body.classList.remove("old");
    } catch (err) {
      document.body.classList.add("old");
      badge("state", "disconnected", "critical");
      document.title = "! disconnected – walpost";
      el("reason").hidden = false;
      el("reason").className = "reason critical";
      set("reason", `The relay does not answer (${err.message}). What is below is old.`);
      turn = 0;
    }
    setTimeout(poll, document.hidden ? 5000 : 1000);
  }
  poll();
})();
