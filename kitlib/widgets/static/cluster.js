// A cluster: what its nodes use over time, and its pods.
function clusterView(model, root) {
  return { draw: {}, destroy: () => {} };
}
