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

  let before = null; // the counters of some seconds ago, for the rate
  const rates = [];

  function show(s) {
    set("name", s.name);
    set("version", s.version);
    document.title = `${s.ready ? "" : "! "}${s.name} – walpost`;
    const bad = s.state === "halted" || s.state === "stopped";
    badge("state", s.ready ? "ready" : s.state, s.ready ? "ok" : bad ? "critical" : "warning");
    el("reason").hidden = s.ready;
    el("reason").className = bad ? "reason critical" : "reason";
    set("reason", s.reason);

    rates.push({ at: s.now_seconds, events: s.events, run: s.holder });
    while (rates.length > 1 && (s.now_seconds - rates[0].at > 10 || rates[0].run !== s.holder)) rates.shift();
    before = rates[0];
    const passed = s.now_seconds - before.at;
    set("rate", passed > 0 ? number(Math.round((s.events - before.events) / passed)) : "–");
    set("events", number(s.events));
    set("latency", s.latency.count ? `${seconds(s.latency.p50_seconds)} / ${seconds(s.latency.p99_seconds)}` : "–");
    set("oldest", s.in_flight.oldest_seconds === null ? "none" : seconds(s.in_flight.oldest_seconds));
    set("inflight", `${number(s.in_flight.events)} events, ${bytes(s.in_flight.bytes)}`);
    set("full", seconds(s.window.full_seconds));
    el("window").value = Math.max(s.in_flight.events / s.window.events, s.in_flight.bytes / s.window.bytes);

    const slot = s.slot;
    set("slot-name", slot.name);
    badge("slot-state", slot.state === "unknown" ? "cannot tell" : slot.state, slot.state);
    el("slot-findings").replaceChildren(...slot.findings.map((text) => {
      const li = document.createElement("li");
      li.textContent = text;
      return li;
    }));
    el("slot-findings").hidden = slot.findings.length === 0;
    set("retained", bytes(slot.retained_bytes));
    set("unconfirmed", bytes(slot.unconfirmed_bytes));
    set("safe-wal", slot.known ? (slot.safe_wal_bytes === null ? "no limit set" : bytes(slot.safe_wal_bytes)) : "–");
    set("exhaustion", slot.known ? (slot.exhaustion_seconds === null ? "not in sight" : seconds(slot.exhaustion_seconds)) : "–");
    set("wal-status", slot.known ? `${slot.wal_status || "none"}, ${slot.active ? "active" : "inactive"}` : "–");
    set("blocker", slot.blocker || "nothing");
    set("checked", slot.checked_seconds_ago === null ? "not yet" : `${seconds(slot.checked_seconds_ago)} ago`);

    for (const key of ["received", "safe", "checkpoint", "confirmed"]) set(key, s.position[key]);

    const topics = Object.entries(s.topics).sort((a, b) => b[1] - a[1]);
    el("topics").replaceChildren(...topics.map(([topic, count]) => {
      const row = document.createElement("tr");
      for (const text of [topic, number(count)]) {
        const cell = document.createElement("td");
        cell.textContent = text;
        row.append(cell);
      }
      return row;
    }));
    el("no-topics").hidden = topics.length > 0;

    set("database", s.source.database || "–");
    set("since", seconds(s.since_seconds));
    set("transactions", number(s.transactions));
    set("sessions", Object.entries(s.sessions).map(([how, n]) => `${n} ${how}`).join(", ") || "none");
    set("epoch", s.epoch ? `${s.epoch}, ${s.source.timeline}` : "–");
    set("error", s.last_error ? `${s.last_error} (${seconds(s.last_error_seconds_ago)} ago)` : "none");
  }

  async function poll() {
    try {
      const response = await fetch("api/status", { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!response.ok) throw new Error(`status ${response.status}`);
      show(await response.json());
    } catch (err) {
      badge("state", "not reachable", "critical");
      el("reason").hidden = false;
      el("reason").className = "reason critical";
      set("reason", `The relay does not answer (${err.message}). What is below is old.`);
    }
    setTimeout(poll, document.hidden ? 5000 : 1000);
  }
  poll();
})();
