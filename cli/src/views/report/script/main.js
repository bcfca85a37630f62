// ---- The start.

const openForPaper = () => {
  showAllEntries();
  document.querySelectorAll('#list details').forEach((it) => { it.open = true; });
  printTable();
};

startList();
// The matrix and the graph stay hidden without scripts. They are drawn once they have a size.
byId('matrix').hidden = false;
byId('graph').hidden = false;
startMatrix();
startGraph();
addEventListener('beforeprint', openForPaper);
