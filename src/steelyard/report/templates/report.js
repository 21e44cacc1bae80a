(function () {
  "use strict";
  var opened = [];
  addEventListener("beforeprint", function () {
    document.querySelectorAll("details:not([open]):not(.raw)").forEach(function (d) { d.open = true; opened.push(d); });
  });
  addEventListener("afterprint", function () {
    opened.forEach(function (d) { d.open = false; });
    opened = [];
  });
  function field(text) {
    text = text.replace(/−/g, "-").replace(/\s+/g, " ").trim();
    if (/^[=+@-]/.test(text) && !/^[+-]?[\d.]+(e[+-]?\d+)?$/i.test(text)) text = "'" + text;
    return /[",\n]/.test(text) ? '"' + text.replace(/"/g, '""') + '"' : text;
  }
  document.querySelectorAll("button[data-csv]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () {
      var lines = [];
      document.querySelectorAll("#" + button.dataset.csv + " table").forEach(function (table, number) {
        var task = table.dataset.task || "", arm = "";
        table.querySelectorAll("tr").forEach(function (row) {
          var head = row.parentNode.tagName === "THEAD";
          if (head && number) return;
          if (row.dataset.arm) { arm = row.dataset.arm; return; }
          var cells = Array.prototype.map.call(row.cells, function (cell) { return field(cell.textContent); });
          lines.push((head ? ["task", "arm"] : [field(task), field(arm)]).concat(cells).join(","));
        });
      });
      document.querySelectorAll("#" + button.dataset.csv + " pre").forEach(function (block, number) {
        block.textContent.split("\n").forEach(function (line, index) {
          if (index || !number) lines.push((index ? field(block.dataset.task) : "task") + "," + line);
        });
      });
      var link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([lines.join("\n") + "\n"], { type: "text/csv" }));
      link.download = button.dataset.name;
      link.click();
      setTimeout(function () { URL.revokeObjectURL(link.href); }, 1000);
    });
  });
})();
