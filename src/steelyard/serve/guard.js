"use strict";
(function () {
  var form = document.getElementById("ask"), button = document.getElementById("go"), began = 0, clock = 0;
  function element(id) { return document.getElementById(id); }
  function text(id, value) { element(id).textContent = value; }
  function cell(row, value, css) {
    var made = row.insertCell();
    made.textContent = value;
    made.className = css;
  }
  function waiting() {
    text("state", "Asking… " + Math.round((Date.now() - began) / 1000) + " s");
  }
  function show(found) {
    text("plain", found.undefended);
    text("answer", found.response);
    text("verdict", found.verdict);
    element("verdict").className = "v " + (found.jailbroken ? "open" : "none");
    text("bound", found.bound);
    var rows = element("copies");
    rows.textContent = "";
    found.copies.forEach(function (copy, index) {
      var row = rows.insertRow();
      if (index === found.chosen) row.className = "ours";
      cell(row, String(index + 1) + (index === found.chosen ? " (returned)" : ""), "l");
      cell(row, copy.vote ? "complied" : "refused", "l " + (copy.vote ? "open" : "none"));
      cell(row, copy.response, "w");
      cell(row, copy.disrupted, "w");
      cell(row, copy.rectified, "w");
    });
    element("notes").textContent = "";
    found.notes.forEach(function (note) {
      var item = document.createElement("li");
      item.textContent = note;
      element("notes").appendChild(item);
    });
    element("shown").hidden = false;
  }
  form.addEventListener("submit", function (event) {
    event.preventDefault();
    button.disabled = true;
    began = Date.now();
    element("shown").hidden = true;
    waiting();
    clock = setInterval(waiting, 1000);
    fetch("/ask", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ prompt: element("prompt").value })
    }).then(function (answer) {
      return answer.json().then(function (found) {
        if (!answer.ok) throw new Error(found.error.message);
        return found;
      });
    }).then(function (found) {
      text("state", "Done in " + ((Date.now() - began) / 1000).toFixed(1) + " s, " + found.calls + " calls of the model.");
      show(found);
    }).catch(function (error) {
      text("state", "Not answered: " + error.message);
    }).then(function () {
      clearInterval(clock);
      button.disabled = false;
    });
  });
})();
