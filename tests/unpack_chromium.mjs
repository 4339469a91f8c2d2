// Unpacks the npm package @sparticuz/chromium: node unpack_chromium.mjs PACKAGE/bin FOLDER
import { execFileSync } from "node:child_process";
import { chmodSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { brotliDecompressSync } from "node:zlib";

const [packed, folder] = process.argv.slice(2);
const unpacked = (name) => brotliDecompressSync(readFileSync(join(packed, name)));

mkdirSync(folder, { recursive: true });
for (const name of ["al2023.tar.br", "fonts.tar.br", "swiftshader.tar.br"]) {
  execFileSync("tar", ["--extract", "--no-same-owner", "--directory", folder], { input: unpacked(name) });
}
const fonts = `<dir>${join(folder, "fonts")}</dir><dir>/usr/share/fonts</dir><cachedir>${join(folder, "fonts-cache")}</cachedir>`;
writeFileSync(join(folder, "fonts.conf"), `<?xml version="1.0"?><fontconfig>${fonts}</fontconfig>`);
writeFileSync(join(folder, "chromium"), unpacked("chromium.br"));
chmodSync(join(folder, "chromium"), 0o755);
