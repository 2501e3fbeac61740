// Keeps a cache of Agents with the label `w=follow` until one is called `stop`, and prints it.

import * as k8s from '@kubernetes/client-node';

const [group, version, plural] = ['panda.dev', 'v1alpha1', 'agents'];
const namespace = process.env.PANDA_NAMESPACE;
const kc = new k8s.KubeConfig();
kc.loadFromDefault();
const custom = kc.makeApiClient(k8s.CustomObjectsApi);
const labelSelector = 'w=follow';
const list = () => custom.listNamespacedCustomObject({ group, version, plural, namespace, labelSelector });
const path = `/apis/${group}/${version}/namespaces/${namespace}/${plural}`;
const informer = k8s.makeInformer(kc, path, list, labelSelector);

// The library leaves it to its user to start again after an error.
async function start() {
  try {
    await informer.start();
  } catch {
    setTimeout(start, 200);
  }
}
informer.on('error', () => setTimeout(start, 200));
await start();
console.log('ready');
const finish = setInterval(() => {
  const items = informer.list();
  if (!items.some((item) => item.metadata.name === 'stop')) return;
  clearInterval(finish);
  const lines = items.map((item) => `cache ${item.metadata.name} ${item.metadata.resourceVersion}`);
  console.log(lines.sort().join('\n'));
  process.exit(0);
}, 20);
