// Builds the package: the native module, and dist/ from ts/.
//
//   node scripts/build.mjs            with the native module in the dev profile
//   node scripts/build.mjs --release  with an optimised one, to be published
//   node scripts/build.mjs --built    with the one that cargo built last; with --release and --target=TRIPLE, the one of these
//   node scripts/build.mjs --types    only dist/
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";

const root = path.join(import.meta.dirname, "..");
const workspace = path.join(root, "../..");
const run = (program, args, cwd) => execFileSync(program, args, { cwd, stdio: "inherit" });

if (!process.argv.includes("--types")) {
  const isRelease = process.argv.includes("--release");
  if (!process.argv.includes("--built")) {
    run("cargo", ["build", "-p", "tollgate-node", ...(isRelease ? ["--release"] : [])], workspace);
  }
  const prefix = process.platform === "win32" ? "" : "lib";
  const suffix = { win32: ".dll", darwin: ".dylib" }[process.platform] ?? ".so";
  const target = process.env.CARGO_TARGET_DIR ?? path.join(workspace, "target");
  const triple = process.argv.find((argument) => argument.startsWith("--target="))?.slice("--target=".length) ?? "";
  const built = path.join(target, triple, isRelease ? "release" : "debug", `${prefix}tollgate_node${suffix}`);
  const native = path.join(root, "native");
  mkdirSync(native, { recursive: true });
  // Renamed into place: a process that has the old one loaded keeps it.
  const libc = process.platform === "linux" ? "-gnu" : "";
  const module = path.join(native, `tollgate.${process.platform}-${process.arch}${libc}.node`);
  copyFileSync(built, `${module}.new`);
  // Line tables are half of the file, and stay in the target folder.
  if (process.platform === "linux") run("strip", ["--strip-debug", `${module}.new`], root);
  renameSync(`${module}.new`, module);
}

rmSync(path.join(root, "dist"), { recursive: true, force: true });
const tsc = path.join(root, "node_modules/typescript/bin/tsc");
run(process.execPath, [tsc, "-p", "tsconfig.json"], root);
run(process.execPath, [tsc, "-p", "tsconfig.esm.json"], root);
writeFileSync(path.join(root, "dist/esm/package.json"), '{ "type": "module" }\n');

// The classes of errors must be the same for `import` and `require`, so modules re-export the CommonJS files.
for (const entry of ["index", "express", "edge"]) {
  const exports = Object.keys(await import(path.join(root, `dist/${entry}.js`)))
    .filter((name) => !["default", "module.exports", "__esModule"].includes(name))
    .join(", ");
  writeFileSync(path.join(root, `dist/${entry}.mjs`), `export { ${exports} } from "./${entry}.js";\n`);
  writeFileSync(path.join(root, `dist/${entry}.d.mts`), `export * from "./${entry}.js";\n`);
}
