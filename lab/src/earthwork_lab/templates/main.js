const data = JSON.parse(document.getElementById("data").textContent);
for (const chart of data.charts) drawChart(document.getElementById(`chart-${chart.key}`), chart);
startSpace(document.getElementById("space-picture"), document.getElementById("space-side"), data.space);
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});
document.documentElement.dataset.ready = "yes";
