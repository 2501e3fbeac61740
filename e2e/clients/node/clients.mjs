// Drives the stock JavaScript client; see ../README.md.

import * as k8s from '@kubernetes/client-node';
import assert from 'node:assert/strict';

const [group, version, plural] = ['panda.dev', 'v1alpha1', 'agents'];
const namespace = process.env.PANDA_NAMESPACE;
const kc = new k8s.KubeConfig();
kc.loadFromDefault();
const custom = kc.makeApiClient(k8s.CustomObjectsApi);
const objects = k8s.KubernetesObjectApi.makeApiClient(kc);
const path = `/apis/${group}/${version}/namespaces/${namespace}/${plural}`;

function agent(name, labels = {}) {
  const metadata = { name, namespace, labels };
  const spec = { displayName: 'one', drivers: [{ kind: 'Exec', command: ['true'] }] };
  return { apiVersion: `${group}/${version}`, kind: 'Agent', metadata, spec };
}

async function refused(code, reason, call) {
  try {
    await call();
  } catch (error) {
    const status = typeof error.body === 'string' ? JSON.parse(error.body) : error.body;
    assert.deepEqual([error.code, status.reason], [code, reason]);
    return;
  }
  assert.fail(`not refused with ${code}`);
}

/** Waits until `check` is true. */
async function until(what, check) {
  const end = Date.now() + 30_000;
  while (!check()) {
    if (Date.now() > end) throw new Error(`not in time: ${what()}`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

const cases = {
  async objects_are_made_read_changed_and_deleted() {
    const made = await objects.create(agent('js-a'));
    assert.equal(made.metadata.generation, 1);
    await refused(409, 'AlreadyExists', () => objects.create(agent('js-a')));
    const change = { ...agent('js-a'), spec: { displayName: 'two' } };
    const patched = await objects.patch(change, undefined, undefined, undefined, undefined, k8s.PatchStrategy.MergePatch);
    assert.equal(patched.spec.displayName, 'two');
    patched.spec.displayName = 'three';
    const replaced = await objects.replace(patched);
    assert.equal((await objects.read(agent('js-a'))).spec.displayName, replaced.spec.displayName);
    await objects.delete(agent('js-a'));
    await refused(404, 'NotFound', () => objects.read(agent('js-a')));
  },

  async a_json_patch_is_the_default_of_custom_objects() {
    await objects.create(agent('js-patch'));
    const body = [{ op: 'replace', path: '/spec/displayName', value: 'two' }];
    const at = { group, version, plural, name: 'js-patch', body, namespace };
    const patched = await custom.patchNamespacedCustomObject(at);
    assert.equal(patched.spec.displayName, 'two');
  },

  async a_watch_shows_what_happens() {
    const seen = [];
    let ended;
    const done = new Promise((resolve) => (ended = resolve));
    const watch = new k8s.Watch(kc);
    const request = await watch.watch(
      path,
      { labelSelector: 'w=js' },
      (type, object) => seen.push(`${type} ${object.metadata.name}`),
      ended,
    );
    await objects.create(agent('js-watch', { w: 'js' }));
    await objects.delete(agent('js-watch'));
    await until(() => `${seen}`, () => seen.length >= 2);
    request.abort();
    await done;
    assert.deepEqual(seen, ['ADDED js-watch', 'DELETED js-watch']);
  },

  async an_informer_keeps_a_cache() {
    await objects.create(agent('js-before', { i: 'js' }));
    const list = () => custom.listNamespacedCustomObject({ group, version, plural, namespace, labelSelector: 'i=js' });
    const informer = k8s.makeInformer(kc, path, list, 'i=js');
    const names = () => informer.list().map((item) => item.metadata.name).sort().join();
    await informer.start();
    await until(names, () => names() === 'js-before');
    await objects.create(agent('js-after', { i: 'js' }));
    await until(names, () => names() === 'js-after,js-before');
    await objects.delete(agent('js-before'));
    await until(names, () => names() === 'js-after');
    await informer.stop();
  },

  async built_in_kinds_are_typed() {
    const core = kc.makeApiClient(k8s.CoreV1Api);
    const body = { metadata: { name: 'js' }, data: { k: 'v' } };
    await core.createNamespacedConfigMap({ namespace, body });
    assert.equal((await core.readNamespacedConfigMap({ namespace, name: 'js' })).data.k, 'v');
    await core.deleteNamespacedConfigMap({ namespace, name: 'js' });
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.error(error);
    console.log(`FAIL ${name}: ${String(error).slice(0, 300)}`);
  }
}
process.exit(failed ? 1 : 0);
