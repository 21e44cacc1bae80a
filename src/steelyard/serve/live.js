"use strict";
(function () {
  var url = document.body.dataset.progress, lost = 0;
  function text(id, value) { document.getElementById(id).textContent = value; }
  function show(p) {
    var whole = p.total || 1, bar = document.getElementById("meter");
    bar.setAttribute("aria-valuenow", p.done + p.failed);
    bar.setAttribute("aria-valuemax", p.total);
    ["done", "failed", "running"].forEach(function (state, i) { bar.children[i].style.width = 100 * p[state] / whole + "%"; });
    text("said", p.done + p.failed + " of " + p.total + " cells are in" + (p.failed ? ", " + p.failed + " failed" : ""));
    document.title = Math.floor(100 * (p.done + p.failed) / whole) + " % · steelyard";
    var rows = document.getElementById("arms");
    p.arms.forEach(function (arm, i) {
      var row = rows.rows[i];
      if (!row) return;
      ["done", "failed", "running", "waiting"].forEach(function (state, j) { row.cells[j + 1].textContent = arm[state]; });
    });
    var list = document.getElementById("cells");
    list.textContent = "";
    p.cells.forEach(function (cell) {
      var item = document.createElement("li");
      item.textContent = cell.arm + " on " + cell.task + ", seed " + cell.seed;
      list.appendChild(item);
    });
    if (!p.cells.length) list.textContent = "No cell is running right now.";
  }
  function ask() {
    fetch(url, { cache: "no-store" }).then(function (answer) {
      if (!answer.ok) throw new Error(String(answer.status));
      return answer.json();
    }).then(function (p) {
      lost = 0;
      text("state", "");
      show(p);
      if (p.finished) location.reload(); else setTimeout(ask, 1000);
    }).catch(function () {
      lost += 1;
      text("state", "The view does not answer; is steelyard view still running?");
      setTimeout(ask, Math.min(1000 * lost, 10000));
    });
  }
  setTimeout(ask, 1000);
})();
